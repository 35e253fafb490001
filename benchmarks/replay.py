"""What looking back at recorded groups costs: distances at every step, reading, and a whole sweep.

The bars are ratios of CPU time of this thread within this one run: the best of a few repeats, methods taking
turns on the same groups, so that load and clock speed cancel out. Beside them stand rates of this machine,
which hold nowhere else. Groups are synthetic: G=8, actions from a Zipf alphabet of 40, `converged` = one
reference with 1% of the actions replaced, `half` = every second rollout 50% replaced, `diverged` =
independent draws.

    python benchmarks/replay.py [--full] [--json]

Prints tables (or one JSON document) and exits 1 if a bar is missed. Takes about a minute; --full measures
100,000 groups instead of extrapolating to them.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations, cycle, islice
from pathlib import Path
from statistics import mean
from typing import Literal

from rapidfuzz.distance.Levenshtein import distance

from selective_rollout.analysis.batch_curve import mean_curves
from selective_rollout.analysis.curve import MemberRow
from selective_rollout.analysis.sweep import sweep_table
from selective_rollout.analysis.sweep_grid import SweepGrid
from selective_rollout.analysis.sweep_table import SweepCollector
from selective_rollout.distance.symbols import SymbolTable
from selective_rollout.trace.reader import ReadReport, read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Group, Usage

Kind = Literal["converged", "half", "diverged"]
Rows = list[list[str]]
KINDS: tuple[Kind, ...] = ("converged", "half", "diverged")
SIZE = 8
BATCH = 256
BASELINE_GROUPS = 3
REPEATS = 4
ACTIONS = tuple(f"take object {i} from shelf {i % 7}" for i in range(40))
WEIGHTS = [1 / rank for rank in range(1, len(ACTIONS) + 1)]


@dataclass(frozen=True)
class Ratio:
    """How many times cheaper the batch is than a baseline."""

    kind: Kind | Literal["all kinds"]
    baseline: str
    ours_us: float
    theirs_us: float
    at_least: float | None = None
    """The bar; None: shown for what it is."""

    @property
    def measured(self) -> float:
        """The ratio."""
        return self.theirs_us / self.ours_us

    @property
    def held(self) -> bool:
        """Whether the bar is reached."""
        return self.at_least is None or self.measured >= self.at_least


@dataclass(frozen=True)
class Rate:
    """How long groups take on this machine, in CPU seconds."""

    what: str
    groups: int
    seconds: float
    extrapolated: bool = False


@dataclass(frozen=True)
class Reading:
    """How fast a trace is read on this machine."""

    mb_per_s: float
    lines_per_s: float
    groups_per_s: float


def make_rows(kind: Kind, length: int, seed: int) -> Rows:
    rng = random.Random(f"{kind} {length} {seed}")
    reference = rng.choices(ACTIONS, WEIGHTS, k=length)
    shares = {"converged": [0.01], "half": [0.01, 0.5], "diverged": [1.0]}[kind]
    rows = []
    for member in range(SIZE):
        share = shares[member % len(shares)]
        fresh = rng.choices(ACTIONS, WEIGHTS, k=length)
        rows.append([new if rng.random() < share else old for old, new in zip(reference, fresh, strict=True)])
    return rows


def make_members(length: int, count: int) -> list[list[MemberRow]]:
    return [
        [MemberRow(row, None) for row in make_rows(KINDS[seed % 3], length, seed)] for seed in range(count)
    ]


def cpu(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


def per_step(rows: Sequence[Sequence[str]]) -> list[float]:
    """Rapidfuzz on all pairs, anew at every step."""
    pairs = SIZE * (SIZE - 1) // 2
    curve = []
    for k in range(1, len(rows[0]) + 1):
        prefixes = [row[:k] for row in rows]
        curve.append(sum(distance(a, b) for a, b in combinations(prefixes, 2)) / (pairs * k))
    return curve


def per_step_interned(rows: Sequence[Sequence[str]]) -> list[float]:
    symbols = SymbolTable()
    return per_step([symbols.encode(row) for row in rows])


def ratios() -> list[Ratio]:
    """The bars hold for a workload of all kinds in equal parts; each kind stands beside them."""
    costs = {kind: costs_of(kind) for kind in KINDS}
    ours, lists, interned = map(mean, zip(*costs.values(), strict=True))
    found = [
        Ratio("all kinds", "lists", ours, lists, 12),
        Ratio("all kinds", "interned strings", ours, interned, 5),
    ]
    for kind, (ours, lists, interned) in costs.items():
        found += [Ratio(kind, "lists", ours, lists), Ratio(kind, "interned strings", ours, interned)]
    return found


def costs_of(kind: Kind) -> tuple[float, float, float]:
    """CPU microseconds per group: the batch, rapidfuzz on lists, rapidfuzz on interned strings."""
    batch = [make_rows(kind, 100, seed) for seed in range(BATCH)]
    members = [[MemberRow(row, None) for row in rows] for rows in batch]
    few = batch[:BASELINE_GROUPS]
    assert [curve.tolist() for curve in mean_curves(members[:1])] == [per_step_interned(batch[0])]
    turns = [
        (
            cpu(partial(mean_curves, members)) / BATCH,
            cpu(partial(all_of, per_step, few)) / BASELINE_GROUPS,
            cpu(partial(all_of, per_step_interned, few)) / BASELINE_GROUPS,
        )
        for _ in range(REPEATS)
    ]
    ours, lists, interned = (1e6 * min(column) for column in zip(*turns, strict=True))
    return ours, lists, interned


def all_of(work: Callable[[Rows], object], groups: Sequence[Rows]) -> None:
    for rows in groups:
        work(rows)


def curve_rates(full: bool) -> list[Rate]:
    """Distances at all 100 steps, groups in memory, in batches as a sweep makes them."""
    pool = make_members(100, 300)
    rates = []
    for count in (1_000, 10_000, *([100_000] if full else [])):
        seconds = cpu(partial(in_batches, islice(cycle(pool), count)))
        rates.append(Rate("distances at 100 steps", count, seconds))
    if not full:
        rates.append(Rate("distances at 100 steps", 100_000, 10 * rates[-1].seconds, extrapolated=True))
    return rates


def in_batches(groups: Iterator[list[MemberRow]]) -> None:
    while batch := list(islice(groups, BATCH)):
        mean_curves(batch)


def write_trace(path: Path, count: int, length: int) -> None:
    with Recorder(path) as recorder:
        for number in range(count):
            rows = make_rows(KINDS[number % 3], length, number)
            with recorder.group(f"g{number}", SIZE, task_id=f"t{number // 4}") as writing:
                for member, row in enumerate(rows):
                    for k, action in enumerate(row):
                        seen = f"room {k} of {number}"
                        usage = Usage(prompt=300 + k, completion=12, source="server")
                        writing.step(member, action, observation=seen, is_error=k % 7 == 0, usage=usage)
                    writing.finish(member, float((number + member * (number % 3)) % 2))


def sweep_rates(count: int, length: int) -> tuple[list[Rate], Reading]:
    """Reading a trace, then sweeping what was read."""
    report = ReadReport()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        write_trace(path, count, length)
        seconds = min(cpu(partial(read_all, path)) for _ in range(2))
        groups = [recorded.group for recorded in read_groups(path, report=report)]
    rates = [Rate(f"reading, {length} steps", count, seconds)]
    for what, signals in (("distance only", ("distance",)), ("every signal", SweepGrid().signals)):
        collector = SweepCollector(SweepGrid(signals=signals))
        rates.append(Rate(f"collecting, {what}", count, cpu(partial(collect, collector, groups))))
    judge = partial(sweep_table, collector.table(), split=None, seed=0)
    rates.append(Rate("intervals, chance, history", count, cpu(judge)))
    return rates, Reading(report.bytes / 1e6 / seconds, report.lines / seconds, count / seconds)


def read_all(path: Path) -> None:
    for _ in read_groups(path):
        pass


def collect(collector: SweepCollector, groups: Sequence[Group]) -> None:
    for each in groups:
        collector.add(each)
    collector.table()


def show(found: Sequence[Ratio], rates: Sequence[Rate], reading: Reading) -> str:
    lines = [f"{'distances at 100 steps, G=8, us per group':<54} {'ours':>6} {'theirs':>7} {'ratio':>6}"]
    for ratio in found:
        name = f"{ratio.kind} vs rapidfuzz per step on {ratio.baseline}"
        bar = "" if ratio.at_least is None else f"  >= {ratio.at_least:g} {'ok' if ratio.held else 'MISSED'}"
        lines.append(f"{name:<54} {ratio.ours_us:6,.0f} {ratio.theirs_us:7,.0f} {ratio.measured:6.1f}{bar}")
    lines += ["", f"{'on this machine (CPU)':<42} {'groups':>9} {'seconds':>9}"]
    for rate in rates:
        note = "  extrapolated" if rate.extrapolated else ""
        lines.append(f"{rate.what:<42} {rate.groups:>9,} {rate.seconds:>9.1f}{note}")
    lines.append("")
    lines.append(
        f"reading: {reading.mb_per_s:.1f} MB/s, {reading.lines_per_s:,.0f} lines/s, "
        f"{reading.groups_per_s:,.0f} groups/s"
    )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="What looking back at recorded groups costs.")
    parser.add_argument("--full", action="store_true", help="measure 100,000 groups (minutes)")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    arguments = parser.parse_args()
    found = ratios()
    rates, reading = sweep_rates(400, 30)
    rates = [*curve_rates(arguments.full), *rates]
    if arguments.json:
        bars = [{**asdict(ratio), "measured": ratio.measured, "held": ratio.held} for ratio in found]
        document = {"bars": bars, "rates": [asdict(rate) for rate in rates], "reading": asdict(reading)}
        print(json.dumps(document, indent=2))
    else:
        print(show(found, rates, reading))
    return 0 if all(ratio.held for ratio in found) else 1


if __name__ == "__main__":
    sys.exit(main())
