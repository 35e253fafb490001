"""What report, sweep and calibrate need for a trace of many groups: seconds and peak memory, all measured.

Generates a trace as a run would record it (G=8, rollouts of 6 to --longest steps, usage and observation
hashes on every step), then runs each command on it in a process of its own. A group has a sharpness, which
sets how far its members stray from one course of actions and how likely it is that all of them end alike; so
distance tells something about zero variance, and there is work for every part of the commands.

    python benchmarks/scale.py [--groups N] [--longest T] [--command NAME] [--folder PATH] [--json]

The rates hold for the machine they were measured on. With --folder the trace is kept there, and used again
if it is there already.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from selective_rollout.trace.schema import (
    TRACE_VERSION,
    Event,
    GroupEndEvent,
    GroupEvent,
    HeaderEvent,
    RolloutEndEvent,
    StepEvent,
    UsageRecord,
)
from selective_rollout.types import RolloutStatus

SIZE = 8
SHORTEST = 6
ACTIONS = tuple(f"take object {i} from shelf {i % 7}" for i in range(40))
STRAYING = (0.0, 0.01, 0.05, 0.15, 0.4)
COMMANDS = ("report", "sweep", "calibrate")
MAIN = "from selective_rollout.cli.main import main; main()"


@dataclass(frozen=True)
class Cost:
    """What one command took."""

    command: str
    groups: int
    megabytes: float
    wall_s: float
    cpu_s: float
    peak_mib: float
    exit_code: int


def events(number: int, longest: int) -> list[Event]:
    """One group of its own task, from begin to end."""
    rng = random.Random(number)
    name, straying = f"g{number}", rng.choice(STRAYING)
    course = rng.choices(ACTIONS, k=longest)
    alike = rng.random() < 0.8 - straying
    common = float(rng.random() < 0.4)
    group: list[Event] = [GroupEvent(group=name, task_id=f"t{number}", size=SIZE, mode="observe")]
    for rollout in range(SIZE):
        length = rng.randint(SHORTEST, longest)
        group += [_step(rng, name, rollout, k, course, straying) for k in range(1, length + 1)]
        reward = common if alike else float(rng.random() < 0.5)
        status = RolloutStatus.FINISHED
        group.append(RolloutEndEvent(group=name, rollout=rollout, status=status, reward=reward))
    group.append(GroupEndEvent(group=name))
    return group


def _step(
    rng: random.Random, group: str, rollout: int, k: int, course: Sequence[str], straying: float
) -> StepEvent:
    strays = rng.random() < straying
    return StepEvent(
        group=group,
        rollout=rollout,
        step=k,
        action=rng.choice(ACTIONS) if strays else course[k - 1],
        observation_hash=f"{rng.getrandbits(64) if strays else k:016x}",
        is_error=strays and k % 3 == 0,
        usage=UsageRecord(prompt=300 + 20 * k, completion=12, source="server"),
    )


def write_trace(path: Path, groups: int, longest: int) -> None:
    encode = msgspec.json.Encoder().encode
    header = HeaderEvent(
        trace_version=TRACE_VERSION, producer="scale", created="2026-01-01T00:00:00+00:00", writer="scale"
    )
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(encode(header) + b"\n")
        for number in range(groups):
            file.write(b"".join(encode(event) + b"\n" for event in events(number, longest)))
    partial.rename(path)


def measure(command: str, trace: Path, groups: int, folder: Path) -> Cost:
    """Run one command and ask the kernel what it took."""
    arguments = [sys.executable, "-c", MAIN, command, str(trace), "--json"]
    arguments += ["--out", str(folder / ("gate.toml" if command == "calibrate" else command))]
    begun = time.monotonic()
    quiet = (os.POSIX_SPAWN_OPEN, 1, str(folder / f"{command}.json"), os.O_WRONLY | os.O_CREAT, 0o600)
    process = os.posix_spawn(sys.executable, arguments, os.environ, file_actions=[quiet])
    _, status, usage = os.wait4(process, 0)
    return Cost(
        command=command,
        groups=groups,
        megabytes=trace.stat().st_size / 1e6,
        wall_s=time.monotonic() - begun,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_mib=usage.ru_maxrss / 1024,
        exit_code=os.waitstatus_to_exitcode(status),
    )


def show(costs: Sequence[Cost]) -> str:
    first = costs[0]
    lines = [f"{first.groups:,} groups, {first.megabytes:,.0f} MB"]
    lines.append(f"{'command':<12} {'wall s':>8} {'CPU s':>8} {'peak MiB':>9} {'MB/CPU s':>10}")
    for cost in costs:
        failed = f"  exit code {cost.exit_code}" if cost.exit_code else ""
        rate = cost.megabytes / cost.cpu_s
        numbers = f"{cost.wall_s:8.1f} {cost.cpu_s:8.1f} {cost.peak_mib:9.0f} {rate:10.1f}"
        lines.append(f"{cost.command:<12} {numbers}{failed}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Seconds and memory of report, sweep and calibrate.")
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--longest", type=int, default=30, help="most steps of a rollout")
    parser.add_argument("--folder", type=Path, help="keep the trace and what the commands write")
    parser.add_argument("--command", choices=COMMANDS, action="append", help="repeatable; default: all")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        trace = folder / f"{arguments.groups}x{arguments.longest}.jsonl"
        if not trace.exists():
            write_trace(trace, arguments.groups, arguments.longest)
        costs = [
            measure(command, trace, arguments.groups, folder) for command in arguments.command or COMMANDS
        ]
    print(json.dumps([asdict(cost) for cost in costs], indent=2) if arguments.json else show(costs))
    return 1 if any(cost.exit_code for cost in costs) else 0


if __name__ == "__main__":
    sys.exit(main())
