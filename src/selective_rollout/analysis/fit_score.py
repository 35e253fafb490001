"""Fitting the two-sided score to one workload, and whether it is worth having.

Judged out of fold: every group is scored by weights (and compared with a single signal) that were fitted
without its task. The score is recommended only if it beats the best single signal, itself chosen without the
held-out tasks. Weights are fitted on the *choose* part of a split and certified on the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Final, Literal

from selective_rollout.analysis.logistic import fit_sides
from selective_rollout.draws import stable_fraction
from selective_rollout.errors import ConfigError
from selective_rollout.gate.score import TwoSidedScore
from selective_rollout.stats import Interval, auroc, bootstrap_interval

FEATURES: Final = (
    "distance",
    "tool_distance",
    "repeat_rate",
    "termination_fraction",
    "observation_novelty",
    "error_share",
    "history_p_zero_variance",
)
"""Signals tried unless others are named: one of each kind, since every weight costs about ten groups."""

PLANNED: Final = 300
"""Labelled groups that a score with its certificate should be planned with."""

_MOST_FITTED: Final = 5_000
_KNOWN_SHARES: Final = (0.9, 0.5)
"""Features known in that share of the groups make a set to try; the second one pays if they are worth it."""
_GAIN_CONFIDENCE: Final = 0.9

Outcome = Literal["mixed", "all_fail", "all_success"]
_CLASS: Final[Mapping[str, int]] = {"mixed": 0, "all_fail": 1, "all_success": 2}


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled group."""

    task_id: str
    outcome: Outcome
    values: Mapping[str, float | None]
    """Signals by name at the position of the check; None is unknown."""

    @property
    def zero_variance(self) -> bool:
        """Whether the group carries no signal."""
        return self.outcome != "mixed"


@dataclass(frozen=True, slots=True)
class ScoreFit:
    """Fitted weights and their worth out of fold."""

    score: TwoSidedScore
    examples: int
    left_out: int
    """Groups in which a used feature is unknown; such groups are never cut."""
    unused: tuple[str, ...]
    """Features left out: unknown in too many groups, or always the same."""
    auroc: float | None
    """For zero variance, out of fold."""
    best_single: str
    """The signal that was best most often on the folds' training parts."""
    best_single_auroc: float | None
    gain: Interval | None
    """90% interval of the difference of the two, over tasks."""
    warnings: tuple[str, ...]

    @property
    def recommended(self) -> bool:
        """Whether the score ranks better than a coin, and beats the best single signal, one-sided at 5%."""
        better_than_a_coin = self.auroc is not None and self.auroc > 0.5
        return better_than_a_coin and self.gain is not None and self.gain.low > 0


def fit_score(
    examples: Sequence[Example],
    *,
    features: Sequence[str] = FEATURES,
    strength: float = 0.5,
    folds: int = 5,
    seed: int = 0,
) -> ScoreFit:
    """Fit a score and judge it out of fold.

    Groups in which a feature is unknown are judged too, as ones that are never cut.

    Args:
        examples: labelled groups; folds keep the groups of a task together. At most 5,000 are used.
        features: signals to try; those that are often unknown or never vary are left out.
        strength: C of the ridge penalty on standardised features.
        folds: number of parts.
        seed: draws the folds.

    Raises:
        ConfigError: no feature is known and varies, or there are not groups of two outcomes.
    """
    examples = sorted(examples, key=lambda e: stable_fraction("fit", seed, e.task_id))[:_MOST_FITTED]
    found = dict.fromkeys(_usable(examples, features, share) for share in _KNOWN_SHARES)
    sets = [used for used in found if used]
    if not sets:
        tried = ", ".join(features)
        raise ConfigError(
            f"score: none of {tried} varies and is known in {_KNOWN_SHARES[-1]:.0%} of the groups"
        )
    judged = [(used, _held_out(examples, used, sets[-1], strength, folds, seed)) for used in sets]
    used, held_out = max(judged, key=lambda pair: _auroc(pair[1], "score") or 0.0)
    complete = [example for example in examples if _values(example, used)]
    if len({example.zero_variance for example in complete}) < 2:
        raise ConfigError("score: it takes signal-bearing and zero-variance groups to fit a score")
    singles = [scored.single_name for scored in held_out]
    warnings = []
    if len(complete) < PLANNED:
        warnings.append(
            f"{len(complete)} groups to fit on: plan {PLANNED} labelled groups for score and certificate"
        )
    return ScoreFit(
        score=_fit(complete, used, strength),
        examples=len(complete),
        left_out=len(examples) - len(complete),
        unused=tuple(name for name in features if name not in used),
        auroc=_auroc(held_out, "score"),
        best_single=max(sorted(set(singles)), key=singles.count) if singles else used[0],
        best_single_auroc=_auroc(held_out, "single"),
        gain=_gain(held_out, seed),
        warnings=tuple(warnings),
    )


@dataclass(frozen=True, slots=True)
class _Scored:
    """A held-out group; ranks within its fold make folds comparable."""

    task_id: str
    zero_variance: bool
    score: float
    single: float
    single_name: str


def _usable(examples: Sequence[Example], features: Sequence[str], share: float) -> tuple[str, ...]:
    """The features that are known in this share of the groups, and vary."""
    usable = []
    for name in features:
        known = [value for e in examples if (value := e.values.get(name)) is not None]
        if len(known) >= share * len(examples) and len(set(known)) > 1:
            usable.append(name)
    return tuple(usable)


def _held_out(
    examples: Sequence[Example],
    used: Sequence[str],
    singles: Sequence[str],
    strength: float,
    folds: int,
    seed: int,
) -> list[_Scored]:
    """Every group, scored by what was fitted without its fold."""
    fold_of = [int(stable_fraction("fold", seed, e.task_id) * folds) for e in examples]
    scored = []
    for fold in range(folds):
        train = [e for e, its in zip(examples, fold_of, strict=True) if its != fold]
        test = [e for e, its in zip(examples, fold_of, strict=True) if its == fold]
        scored += _scored_fold(train, test, used, singles, strength)
    return scored


def _scored_fold(
    train: Sequence[Example],
    test: Sequence[Example],
    used: Sequence[str],
    singles: Sequence[str],
    strength: float,
) -> list[_Scored]:
    complete = [example for example in train if _values(example, used)]
    if len({example.zero_variance for example in complete}) < 2:
        return []
    score = _fit(complete, used, strength)
    name, sign = _best_single(train, singles)
    scores = _ranks([-1.0 if (p := _p_signal(score, e)) is None else -p for e in test])
    values = _ranks([_signed(e, name, sign) for e in test])
    return [
        _Scored(e.task_id, e.zero_variance, a, b, name) for e, a, b in zip(test, scores, values, strict=True)
    ]


def _p_signal(score: TwoSidedScore, example: Example) -> float | None:
    return score.p_signal([example.values.get(name) for name in score.features])


def _best_single(train: Sequence[Example], singles: Sequence[str]) -> tuple[str, int]:
    """Return the signal that tells zero variance best, and its sign, both as seen in these groups."""
    labels = [example.zero_variance for example in train]
    areas = {
        (name, sign): auroc([_signed(e, name, sign) for e in train], labels) or 0.5
        for name in singles
        for sign in (1, -1)
    }
    return max(areas, key=lambda key: areas[key])


def _signed(example: Example, name: str, sign: int) -> float:
    """The signal, the higher the likelier zero variance; unknown is unlikely."""
    value = example.values.get(name)
    return -math.inf if value is None else sign * value


def _fit(examples: Sequence[Example], used: Sequence[str], strength: float) -> TwoSidedScore:
    rows = [_values(example, used) for example in examples]
    columns = list(zip(*rows, strict=True))
    centre = [fmean(column) for column in columns]
    scale = [pstdev(column) or 1.0 for column in columns]
    z = [[(x - c) / s for x, c, s in zip(row, centre, scale, strict=True)] for row in rows]
    fail, success = fit_sides(z, [_CLASS[example.outcome] for example in examples], strength)
    return TwoSidedScore(
        features=tuple(used),
        centre=tuple(centre),
        scale=tuple(scale),
        fail=fail.weights,
        success=success.weights,
        fail_intercept=fail.intercept,
        success_intercept=success.intercept,
    )


def _values(example: Example, used: Sequence[str]) -> list[float]:
    """The features' values; empty if one of them is unknown."""
    values = [value for name in used if (value := example.values.get(name)) is not None]
    return values if len(values) == len(used) else []


def _ranks(values: Sequence[float]) -> list[float]:
    """Share of the values below each one, ties counted half."""
    ordered = sorted(values)
    ranks, start = {}, 0
    while start < len(ordered):
        end = start + ordered.count(ordered[start])
        ranks[ordered[start]] = (start + end) / (2 * len(ordered))
        start = end
    return [ranks[value] for value in values]


def _auroc(held_out: Sequence[_Scored], which: Literal["score", "single"]) -> float | None:
    return auroc([getattr(s, which) for s in held_out], [s.zero_variance for s in held_out])


def _gain(held_out: Sequence[_Scored], seed: int) -> Interval | None:
    tasks: dict[str, list[_Scored]] = {}
    for scored in held_out:
        tasks.setdefault(scored.task_id, []).append(scored)

    def difference(drawn: Sequence[list[_Scored]]) -> float | None:
        groups = [scored for task in drawn for scored in task]
        score, single = _auroc(groups, "score"), _auroc(groups, "single")
        return None if score is None or single is None else score - single

    resamples = max(200, min(1000, 200_000 // max(1, len(held_out))))
    return bootstrap_interval(
        difference, list(tasks.values()), confidence=_GAIN_CONFIDENCE, resamples=resamples, seed=seed
    )
