"""What cutting inside a step saves against cutting between steps, and what a check inside a step costs.

Saving. Groups of a made-up agent run over HTTP against the loopback server, in observe mode, so every rollout
runs to its end: it thinks in about a hundred tokens, acts, and does so three times. By task, its rollouts say
nearly the same (`together`, 3% of the words differ), go their own ways (`apart`), or say the same in their
first step and part then (`late`). From that ONE run both rules are judged: over steps, and over streamed
token ids. A cut is right if the group's rewards turned out equal. A second, enforcing run only counts the
tokens that the server generated then. The numbers show how saving is counted; what your agents do, only your
own run can tell.

Cost. CPU time of this thread per check of 8 streams, every 64 tokens, against measuring all pairs anew with
rapidfuzz at 1/8, 3/8, 5/8 and 7/8 of the length. Edit distances computed per check are exact counts.

    python benchmarks/streaming_gate.py [--json] [--tasks 24]

Exits 1 if a bar is missed. Takes about a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from gate_micro import (  # type: ignore[import-not-found]
    TOKENS,
    Kind,
    group,
    recompute_lists,
)
from rapidfuzz.distance.Levenshtein import distance

from selective_rollout.analysis.replay import replay
from selective_rollout.distance import bounds
from selective_rollout.engine.batch import run_groups
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.runner import Workshop
from selective_rollout.env.base import Observation, StepResult
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.streaming import StreamGate, StreamRule
from selective_rollout.policy.endpoint import Endpoint
from selective_rollout.policy.openai_client import OpenAIPolicy
from selective_rollout.policy.options import SamplingParams
from selective_rollout.rewards import group_label
from selective_rollout.stats import clopper_pearson
from selective_rollout.testing import LoopbackServer, ScriptedBrain
from selective_rollout.trace.reader import RecordedGroup, read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Mode, Task

G, STEPS, WORDS = 4, 3, 100
SIZE, EVERY = 8, 64
OVER_STEPS = GateConfig(start_step=2, tau=0.12)
OVER_TOKENS = StreamRule(level="token", tau=0.12, start=64, check_every=16)
KINDS = ("together", "apart", "late")
VOCABULARY = [f"word{i}" for i in range(500)]
DRAWS = 2000


@dataclass(frozen=True)
class Saving:
    """What one rule would have done to the groups of the observe run."""

    rule: str
    groups: int
    zero_variance: int
    cuts: int
    right: int
    tokens: int
    saved_lossless: int
    saved_lossy: int
    saved_interval: tuple[float, float]
    """95% of the resampled shares of all tokens that the cuts leave ungenerated."""


@dataclass(frozen=True)
class Cost:
    """Checking one group of 8 streams all the way."""

    kind: str
    tokens: int
    checks: int
    ms_per_check: float
    worst_ms: float
    recompute_ms: float
    evaluations: int
    """Edit distances of pairs computed in all checks together."""

    @property
    def ratio(self) -> float:
        """How many times cheaper than measuring all pairs anew."""
        return self.recompute_ms / self.ms_per_check


def kind_of(prompt: str) -> str:
    return random.Random(prompt).choice(KINDS)


def thought(prompt: str, step: int, seed: int) -> str:
    """The words of one step, then its action."""
    common, own = random.Random(f"{prompt}/{step}"), random.Random(f"{prompt}/{step}/{seed}")
    shared = [common.choice(VOCABULARY) for _ in range(WORDS)]
    kind = kind_of(prompt)
    differ = {"together": 0.03, "apart": 1.0, "late": 0.0 if step == 1 else 1.0}[kind]
    words = [own.choice(VOCABULARY) if own.random() < differ else word for word in shared]
    verdict = "yes" if kind == "together" else own.choice(("yes", "no"))
    action = (
        f"answer {verdict}" if step == STEPS else f"do {(common if differ < 1 else own).choice(VOCABULARY)}"
    )
    return f"{' '.join(words)}\nAction: {action}"


def brain() -> ScriptedBrain:
    def say(request: dict[str, Any], choice: int, seed: int | None) -> str:
        messages = request["messages"]
        step = sum(message["role"] == "assistant" for message in messages) + 1
        return thought(messages[0]["content"], step, seed or 0)

    return ScriptedBrain(say)


class World:
    """Three steps; the last one answers."""

    replayable = True

    def __init__(self, task: Task, rollout: int) -> None:
        self.steps = 0

    def start(self) -> Observation:
        """Nothing is seen at first."""
        return Observation("")

    def step(self, action: str) -> StepResult:
        """Count; a yes at the end is worth 1."""
        self.steps += 1
        over = self.steps == STEPS
        return StepResult("go on", reward=float("yes" in action) if over else None, terminated=over)

    def close(self) -> None:
        """Nothing is held."""


async def run(folder: Path, tasks: int, mode: Mode) -> int:
    """Run all groups; returns the tokens that the server generated."""
    config = RunConfig(group_size=G, max_steps=STEPS, mode=mode, stream=OVER_TOKENS, hold="none")
    with (
        LoopbackServer(brain()) as server,
        Recorder(folder, record_completions=True) as recorder,
    ):
        endpoint = Endpoint(base_url=server.base_url, api_key=server.api_key or "", model=server.model)
        sampling = SamplingParams(extra_body={"return_token_ids": True})
        async with OpenAIPolicy(endpoint, sampling) as policy:
            shop = Workshop(policy, World, OVER_STEPS, config, recorder)
            async for _ in run_groups(
                (Task(f"t{i}", f"prompt {i}") for i in range(tasks)), shop, certified=True
            ):
                pass
        return (await server.until(lambda now: now.in_flight == 0)).completion_tokens


def saved_between_steps(recorded: RecordedGroup) -> int | None:
    """Tokens of all steps after the one at which the rule over steps fires; None if it does not."""
    k = replay(recorded.group, OVER_STEPS).fires_at(OVER_STEPS.tau)
    if k is None:
        return None
    later = [step for rollout in recorded.group.rollouts for step in rollout.steps[k:]]
    return sum(step.usage.completion or 0 for step in later if step.usage is not None)


def saved_inside_steps(recorded: RecordedGroup) -> int | None:
    """Tokens of all streams beyond the position at which the rule over tokens fires."""
    fired = next((d for d in recorded.stream_decisions if d.fires), None)
    if fired is None or fired.step is None:
        return None
    return sum(max(0, len(member.symbols) - fired.step) for member in recorded.streams.values())


def saving(
    name: str, recorded: Sequence[RecordedGroup], saved_of: Callable[[RecordedGroup], int | None]
) -> Saving:
    rows = []
    for one in recorded:
        zero = group_label(one.group).zero_variance is True
        tokens = sum(len(member.symbols) for member in one.streams.values())
        rows.append((zero, saved_of(one), tokens))
    cuts = [(zero, saved) for zero, saved, _ in rows if saved is not None]
    return Saving(
        rule=name,
        groups=len(rows),
        zero_variance=sum(zero for zero, _, _ in rows),
        cuts=len(cuts),
        right=sum(zero for zero, _ in cuts),
        tokens=sum(tokens for _, _, tokens in rows),
        saved_lossless=sum(saved for zero, saved in cuts if zero),
        saved_lossy=sum(saved for zero, saved in cuts if not zero),
        saved_interval=resampled([(saved or 0, tokens) for _, saved, tokens in rows]),
    )


def resampled(rows: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Percentile interval of a ratio of sums, groups drawn with replacement."""
    draw = random.Random(0)
    shares = []
    for _ in range(DRAWS):
        sample = draw.choices(rows, k=len(rows))
        shares.append(sum(a for a, _ in sample) / sum(b for _, b in sample))
    shares.sort()
    return shares[int(0.025 * DRAWS)], shares[int(0.975 * DRAWS)]


def savings(tasks: int) -> tuple[list[Saving], tuple[int, int]]:
    """Both rules on the observe run, and the tokens generated in (observe, enforce)."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        observed = asyncio.run(run(Path(folder) / "observe", tasks, "observe"))
        enforced = asyncio.run(run(Path(folder) / "enforce", tasks, "enforce"))
        recorded = list(read_groups(Path(folder) / "observe"))
    return [
        saving("between steps", recorded, saved_between_steps),
        saving("inside steps", recorded, saved_inside_steps),
    ], (observed, enforced)


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count the edit distances that the gate asks for."""
    calls, measure = [0], distance

    def counting(*arguments: Any, **options: Any) -> int:
        calls[0] += 1
        return measure(*arguments, **options)

    bounds.__dict__["distance"] = counting
    try:
        yield calls
    finally:
        bounds.__dict__["distance"] = measure


def cost(kind: Kind, tokens: int, *, start: int = EVERY) -> Cost:
    """Stream a group to its end in chunks of 64 tokens, the members taking turns."""
    rows = [[int(str(token)) for token in row] for row in group(kind, SIZE, tokens, TOKENS, seed=0)]
    rule = StreamRule(level="token", tau=0.12, start=start, check_every=EVERY)
    gate = StreamGate(rule, GateConfig(), SIZE)
    times: list[float] = []
    with counted() as calls:
        for at in range(0, tokens, EVERY):
            begun, before = time.thread_time(), len(gate.checks)
            for member, row in enumerate(rows):
                gate.hear(member, row[at : at + EVERY])
            if len(gate.checks) > before:
                times.append((time.thread_time() - begun) * 1e3)
            if gate.is_over:
                break
        evaluations = calls[0]
    texts = ["".join(chr(1 + token) for token in row) for row in rows]
    return Cost(
        kind=kind if start == EVERY else f"{kind}, first check at the end",
        tokens=tokens,
        checks=len(times),
        ms_per_check=sum(times) / len(times),
        worst_ms=max(times),
        recompute_ms=recompute_ms(texts, at_end=start > EVERY),
        evaluations=evaluations,
    )


def recompute_ms(texts: Sequence[str], *, at_end: bool) -> float:
    length = len(texts[0])
    cuts = [length] if at_end else [length * eighths // 8 for eighths in (1, 3, 5, 7)]
    begun = time.thread_time()
    for cut in cuts:
        recompute_lists([text[:cut] for text in texts])
    return (time.thread_time() - begun) * 1e3 / len(cuts)


def costs() -> list[Cost]:
    made = [cost(kind, tokens) for tokens in (10_000, 32_000) for kind in ("half", "diverged")]
    return [*made, *(cost("converged", tokens, start=tokens - EVERY) for tokens in (10_000, 32_000))]


def missed(inside: Saving, between: Saving, spent: tuple[int, int], all_costs: Sequence[Cost]) -> list[str]:
    """Bars that do not hold; pairs of 8 streams are 28."""
    pairs = len(list(combinations(range(SIZE), 2)))
    bars = {
        "cutting inside steps saves more than between them": inside.saved_lossless > between.saved_lossless,
        "an enforcing run generates less": spent[1] < spent[0],
        "a check costs at most 1/15 of a recomputation": all(
            c.ratio >= 15 for c in all_costs if c.checks > 1
        ),
        "one late first check costs at most a recomputation": all(
            c.ratio >= 1 for c in all_costs if c.checks == 1
        ),
        "at most one pair in ten is measured per check": all(
            c.evaluations <= 0.1 * pairs * c.checks for c in all_costs if c.checks > 1
        ),
    }
    return [name for name, held in bars.items() if not held]


def show(rules: Sequence[Saving], spent: tuple[int, int], all_costs: Sequence[Cost]) -> None:
    first = rules[0]
    base = clopper_pearson(first.zero_variance, first.groups)
    print(f"{first.groups} groups of {G}, one observe run, {first.tokens:,} tokens")
    print(
        f"base rate: {first.zero_variance} of {first.groups} of zero variance "
        f"({base.low:.0%} to {base.high:.0%})"
    )
    for rule in rules:
        share, (low, high) = (rule.saved_lossless + rule.saved_lossy) / rule.tokens, rule.saved_interval
        precision = clopper_pearson(rule.right, rule.cuts) if rule.cuts else None
        within = f" ({precision.low:.0%} to {precision.high:.0%} right)" if precision else ""
        print(
            f"{rule.rule:<14} {rule.cuts} cuts, {rule.right} right{within}; not generated: "
            f"{rule.saved_lossless:,} tokens lossless, {rule.saved_lossy:,} lossy; together {share:.1%} "
            f"({low:.1%} to {high:.1%})"
        )
    print(f"generated by the server: {spent[0]:,} tokens observing, {spent[1]:,} enforcing both rules\n")
    heads = f"{'tokens':>7}{'checks':>7}{'ms/check':>10}{'worst':>8}{'x':>7}{'pairs':>7}"
    print(f"{'8 streams, every 64':<36}{heads}")
    for c in all_costs:
        print(
            f"{c.kind:<36}{c.tokens:>7}{c.checks:>7}{c.ms_per_check:>10.2f}{c.worst_ms:>8.1f}{c.ratio:>7.1f}"
            f"{c.evaluations:>7}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="What the gate inside a step saves and costs.")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    parser.add_argument("--tasks", type=int, default=24, help="groups to run")
    arguments = parser.parse_args()
    rules, spent = savings(arguments.tasks)
    all_costs = costs()
    between, inside = rules
    wrong = missed(inside, between, spent, all_costs)
    if arguments.json:
        document = {
            "rules": [asdict(rule) for rule in rules],
            "generated": {"observe": spent[0], "enforce": spent[1]},
            "costs": [{**asdict(c), "ratio": c.ratio} for c in all_costs],
            "missed": wrong,
        }
        print(json.dumps(document, indent=2))
    else:
        show(rules, spent, all_costs)
        print("\n".join(f"MISSED: {name}" for name in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
