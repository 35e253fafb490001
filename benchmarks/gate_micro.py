"""What a gate decision costs, as ratios that hold on any machine.

Every bar compares two measurements of this one run, in CPU time of this thread: the best of a few repeats,
methods taking turns on the same group, medians over groups, so that load and clock speed cancel out. Groups
are synthetic: actions from a Zipf alphabet of 40, `converged` = one reference with 1% edits per rollout,
`half` = every second rollout 50% edited, `diverged` = independent draws.

    python benchmarks/gate_micro.py [--json]

Prints a table (or one JSON document) and exits 1 if a bar is missed. Takes under a minute. POSIX only.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import combinations
from statistics import mean, median
from typing import Literal

from rapidfuzz.distance.Levenshtein import distance, normalized_distance

from selective_rollout.distance import GroupDistance

Kind = Literal["converged", "half", "diverged"]
Recompute = Callable[[list[Sequence[object]]], float]
KINDS: tuple[Kind, ...] = ("converged", "half", "diverged")
TAU = 0.12
SEEDS = range(5)
REPEATS = 3
IMPORT_RUNS = 15
ACTIONS = tuple(f"take object {i} from shelf {i % 7}" for i in range(40))
TOKENS = tuple(range(2000))


@dataclass(frozen=True)
class Bar:
    """One measured ratio (or time) and what it must not cross."""

    name: str
    measured: float
    at_least: float | None = None
    at_most: float | None = None

    @property
    def held(self) -> bool:
        """Whether the measurement is on the right side of the bar."""
        above = self.at_least is None or self.measured >= self.at_least
        return above and (self.at_most is None or self.measured <= self.at_most)


def draw(rng: random.Random, alphabet: Sequence[object], length: int) -> list[object]:
    weights = [1 / rank for rank in range(1, len(alphabet) + 1)]
    return rng.choices(alphabet, weights, k=length)


def edited(
    rng: random.Random, reference: Sequence[object], alphabet: Sequence[object], share: float
) -> list[object]:
    """Delete, insert or replace that share of the symbols, at the same length as before."""
    fresh = iter(draw(rng, alphabet, 3 * len(reference)))
    row: list[object] = []
    for symbol in reference:
        edit = rng.choice(("delete", "insert", "replace")) if rng.random() < share else "keep"
        row += {"keep": [symbol], "delete": [], "insert": [next(fresh), symbol], "replace": [next(fresh)]}[
            edit
        ]
    return [*row, *fresh][: len(reference)]


def group(kind: Kind, size: int, length: int, alphabet: Sequence[object], seed: int) -> list[list[object]]:
    rng = random.Random(f"{kind} {size} {length} {seed}")
    reference = draw(rng, alphabet, length)
    if kind == "diverged":
        return [draw(rng, alphabet, length) for _ in range(size)]
    shares = [0.5 if kind == "half" and g % 2 else 0.01 for g in range(size)]
    return [edited(rng, reference, alphabet, share) for share in shares]


def cpu(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return (time.thread_time() - start) * 1e6


def follow(rows: Sequence[Sequence[object]], chunk: int = 1) -> float:
    """GroupDistance fed and asked after every chunk."""
    length = len(rows[0])
    distance_of = GroupDistance(len(rows))
    steps = list(zip(*rows, strict=True))
    chunks = [[row[t : t + chunk] for row in rows] for t in range(0, length, chunk)]

    def by_step() -> None:
        for step in steps:
            distance_of.append(step)
            distance_of.decide(TAU)

    def by_chunk() -> None:
        for part in chunks:
            distance_of.extend(part)
            distance_of.decide(TAU)

    return cpu(by_step if chunk == 1 else by_chunk) / len(chunks)


def sampled(rows: Sequence[Sequence[object]], recompute: Recompute) -> float:
    """A stateless method, asked at 1/8, 3/8, 5/8 and 7/8 of the length."""
    length = len(rows[0])
    cuts = [[row[: max(1, length * eighths // 8)] for row in rows] for eighths in (1, 3, 5, 7)]
    return mean(cpu(lambda cut=cut: recompute(cut)) for cut in cuts)  # type: ignore[misc]


def recompute_lists(prefixes: list[Sequence[object]]) -> float:
    """Rapidfuzz on lists of actions, every pair anew."""
    return mean(normalized_distance(a, b) for a, b in combinations(prefixes, 2))


def recompute_chars(prefixes: list[Sequence[object]]) -> float:
    """Concatenated action text compared by character, every pair anew, as a first version would do it."""
    compare = char_distance()
    texts = [" | ".join(map(str, prefix)) for prefix in prefixes]
    return mean(compare(a, b) / max(len(a), len(b)) for a, b in combinations(texts, 2))


@cache
def char_distance() -> Callable[[str, str], int]:
    """The `editdistance` package where it is installed, else rapidfuzz."""
    if importlib.util.find_spec("editdistance"):
        return importlib.import_module("editdistance").eval  # type: ignore[no-any-return]
    return distance


@cache
def costs(kind: Kind, size: int, length: int, baseline: Recompute) -> list[tuple[float, float]]:
    """CPU microseconds per decision, (baseline, GroupDistance) for each group."""
    pairs = []
    for seed in SEEDS:
        rows = group(kind, size, length, ACTIONS, seed)
        turns = [(sampled(rows, baseline), follow(rows)) for _ in range(REPEATS)]
        pairs.append((min(slow for slow, _ in turns), min(fast for _, fast in turns)))
    return pairs


def cost(kind: Kind, size: int, length: int) -> float:
    return median(fast for _, fast in costs(kind, size, length, recompute_lists))


def speedup(size: int, length: int, baseline: Recompute) -> float:
    """How many times cheaper GroupDistance is, for the kind of group where it gains least."""
    return min(median(slow / fast for slow, fast in costs(kind, size, length, baseline)) for kind in KINDS)


def growth(small: tuple[int, int], large: tuple[int, int]) -> float:
    return max(cost(kind, *large) / cost(kind, *small) for kind in KINDS)


def streaming_speedup(length: int, chunk: int) -> float:
    """Token level, 8 rollouts, against rapidfuzz on strings with one character a token."""

    def ratio(kind: Kind) -> float:
        rows = group(kind, 8, length, TOKENS, seed=0)
        texts = ["".join(chr(1 + int(str(token))) for token in row) for row in rows]
        turns = [(sampled(texts, recompute_lists), follow(rows, chunk)) for _ in range(REPEATS)]
        return min(slow for slow, _ in turns) / min(fast for _, fast in turns)

    return min(map(ratio, KINDS))


def import_ratio() -> float:
    """CPU time of a process that imports the core, over one that imports only what the core builds on.

    Best of some runs with cached bytecode; infinite if the core drags numpy in.
    """
    floor = "import dataclasses, enum, typing; from rapidfuzz.distance.Levenshtein import distance"
    core = "import selective_rollout.distance, sys; sys.exit('numpy' in sys.modules)"
    with tempfile.TemporaryDirectory() as bytecode:
        child_cpu(core, bytecode)
        runs = [(child_cpu(floor, bytecode), child_cpu(core, bytecode)) for _ in range(IMPORT_RUNS)]
    return min(loaded for _, loaded in runs) / min(bare for bare, _ in runs)


def child_cpu(code: str, bytecode: str) -> float:
    """CPU seconds of a fresh interpreter; infinite if it fails."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return float(usage.ru_utime + usage.ru_stime) if process.returncode == 0 else float("inf")


def bars() -> list[Bar]:
    seed_like = char_distance() is not distance
    chars = "editdistance" if seed_like else "rapidfuzz"
    return [
        Bar(
            f"vs {chars} on text, G=8 T=30", speedup(8, 30, recompute_chars), at_least=40 if seed_like else 5
        ),
        Bar(
            f"vs {chars} on text, G=8 T=100",
            speedup(8, 100, recompute_chars),
            at_least=2000 if seed_like else 30,
        ),
        Bar("vs rapidfuzz on lists, G=8 T=30", speedup(8, 30, recompute_lists), at_least=2),
        Bar("vs rapidfuzz on lists, G=8 T=100", speedup(8, 100, recompute_lists), at_least=4),
        Bar("vs rapidfuzz on lists, G=8 T=500", speedup(8, 500, recompute_lists), at_least=15),
        Bar("vs rapidfuzz on lists, G=64 T=100", speedup(64, 100, recompute_lists), at_least=20),
        Bar("growth, G=8, T=100 to 500", growth((8, 100), (8, 500)), at_most=2),
        Bar("growth, T=100, G=8 to 64", growth((8, 100), (64, 100)), at_most=25),
        Bar("vs rapidfuzz on tokens, G=8 T=10000", streaming_speedup(10_000, 64), at_least=15),
        Bar("import of the core vs rapidfuzz alone", import_ratio(), at_most=1.6),
    ]


def table(results: Sequence[Bar]) -> str:
    lines = [f"{'bar':<40} {'measured':>9}  {'required':<10}"]
    for bar in results:
        required = f">= {bar.at_least:g}" if bar.at_least is not None else f"<= {bar.at_most:g}"
        lines.append(f"{bar.name:<40} {bar.measured:9.1f}  {required:<10} {'ok' if bar.held else 'MISSED'}")
    lines.append("")
    lines.append(f"{'us per decision':<16}" + "".join(f"{kind:>12}" for kind in KINDS))
    for size, length in ((8, 30), (8, 100), (8, 500), (64, 100)):
        values = "".join(f"{cost(kind, size, length):12.1f}" for kind in KINDS)
        lines.append(f"{f'G={size} T={length}':<16}{values}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="What a gate decision costs.")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    arguments = parser.parse_args()
    results = bars()
    if arguments.json:
        print(json.dumps({"bars": [{**asdict(bar), "held": bar.held} for bar in results]}, indent=2))
    else:
        print(table(results))
    return 0 if all(bar.held for bar in results) else 1


if __name__ == "__main__":
    sys.exit(main())
