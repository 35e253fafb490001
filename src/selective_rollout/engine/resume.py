"""Taking up an interrupted run from its trace.

The unit is the group. A group that ended is done; one that did not starts again as the next attempt. Where
the environment is replayable the recorded steps are taken over by re-stepping them; otherwise their tokens
count as abandoned. Draws that are on record are read, never drawn again. What the groups that ended told the
alarm and the prompt history is told again.
"""

from __future__ import annotations

from collections.abc import Iterable, KeysView, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from selective_rollout.engine.runner import EarlierAttempt
from selective_rollout.gate.audit import Seen
from selective_rollout.gate.config import GateConfig
from selective_rollout.trace.reader import ReadReport, RecordedGroup, read_groups
from selective_rollout.trace.seen import seen_of
from selective_rollout.types import Rollout, RolloutStatus, Step


@dataclass(frozen=True, slots=True)
class EndedGroup:
    """What a group that ended has to say to the rest of its run."""

    rewards: tuple[float | None, ...]
    was_cut: bool
    seen: Seen | None
    """For the alarm; None if the group was only observed."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """What a trace already holds of a run."""

    ended: Mapping[str, EndedGroup] = field(default_factory=dict)
    """Groups that ended, by id."""
    unfinished: Mapping[str, EarlierAttempt] = field(default_factory=dict)

    @property
    def done(self) -> KeysView[str]:
        """Ids of the groups that ended."""
        return self.ended.keys()


def resume_point(
    paths: Iterable[Path | str],
    *,
    replayable: bool,
    gate: GateConfig | None = None,
    report: ReadReport | None = None,
) -> ResumePoint:
    """Read where a run stopped.

    Args:
        paths: the run's trace files or folder.
        replayable: whether its environments can be re-stepped.
        gate: the rule of the run, which says what rewards count as equal; the paper's by default.
        report: collects what the reader repaired.

    Raises:
        TraceError: the trace is unreadable.
    """
    rule = gate or GateConfig()
    ended: dict[str, EndedGroup] = {}
    unfinished: dict[str, EarlierAttempt] = {}
    for recorded in read_groups(paths, report=report):
        group, end = recorded.group, recorded.end
        if end is None or end.error is not None:
            unfinished[group.id] = _earlier(recorded, replayable)
        else:
            rewards = tuple(rollout.reward for rollout in group.rollouts)
            ended[group.id] = EndedGroup(rewards, end.outcome is not None, seen_of(recorded, rule))
    return ResumePoint(ended, unfinished)


def _earlier(recorded: RecordedGroup, replayable: bool) -> EarlierAttempt:
    rollouts = recorded.group.rollouts
    steps = {r.index: r.steps for r in rollouts if replayable and _can_be_taken_over(r)}
    spent = sum(_completion_tokens(rollout.steps) for rollout in rollouts)
    carried = sum(_completion_tokens(taken) for taken in steps.values())
    return EarlierAttempt(
        attempt=recorded.group.attempt,
        audit=recorded.begin.audit,
        steps=steps,
        abandoned=recorded.abandoned + recorded.lost + spent - carried,
    )


def _can_be_taken_over(rollout: Rollout) -> bool:
    """Failed rollouts get a fresh chance; a step without an observation hash cannot be checked."""
    if rollout.status is RolloutStatus.FAILED:
        return False
    return bool(rollout.steps) and all(step.observation_hash is not None for step in rollout.steps)


def _completion_tokens(steps: Iterable[Step]) -> int:
    return sum(step.usage.completion or 0 for step in steps if step.usage is not None)
