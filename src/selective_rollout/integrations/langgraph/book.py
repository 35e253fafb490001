"""The gate and the trace of one group in one run of the graph, brought up to date from its state.

The state is the truth. Whatever of it this run has not seen, because an earlier run of the graph did it, is
told to a fresh gate (whose decisions depend on positions only, so they come out the same) and written as the
group's next attempt with its steps marked as replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from selective_rollout.engine.config import RunConfig
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.group import GroupGate
from selective_rollout.gate.history import PromptHistory
from selective_rollout.integrations.langgraph.decisions import decision_state
from selective_rollout.integrations.langgraph.state import (
    GroupFacts,
    Plain,
    RolloutState,
    Verdict,
    ended_with_a_step,
    steps_of,
    usage_of,
)
from selective_rollout.trace.recorder import Recorder, log_of
from selective_rollout.types import RolloutStatus


class Book:
    """Keeps one group's gate and trace.

    Args:
        group: the group's facts in the state.
        gate: the rule in force.
        config: the settings in force.
        recorder: where to write the trace.
        attempt: number of this run among those that worked on the group.
        history: the prompts' earlier rewards, to which those of a group that ends are added.
    """

    def __init__(
        self,
        group: GroupFacts,
        gate: GateConfig,
        config: RunConfig,
        recorder: Recorder | None,
        attempt: int,
        history: PromptHistory | None = None,
    ) -> None:
        sampling = config.sampling_of(group["group_id"])
        self.attempt = attempt
        past: Plain = group["settings"]["past"]
        self.gate = GroupGate(
            gate,
            config.group_size,
            group_id=group["group_id"],
            sampling=sampling,
            history=past["rewards"],
            history_p=past["p_zero_variance"],
            tau=past["tau"],
        )
        self._history = history
        self._task_id = group["task_id"]
        self._log = log_of(recorder, group["group_id"], attempt=attempt, gate=self.gate)
        self._written = [0] * config.group_size
        self._told = [0] * config.group_size
        self._ended: set[int] = set()
        self._log.begin(
            size=config.group_size,
            task_id=group["task_id"],
            mode=config.mode,
            sampling=sampling,
            history=past["rewards"],
            audit=group["audited"] if config.mode == "enforce" else None,
            metadata=group["metadata"],
        )

    def write(self, rollout: RolloutState, *, replayed: bool) -> None:
        """Write the steps that the trace does not have yet; the gate does not hear of them."""
        index = rollout["index"]
        if len(rollout["steps"]) == self._written[index]:
            return
        for step, kept in zip(steps_of(rollout), rollout["steps"], strict=True):
            if step.index > self._written[index]:
                self._log.write_step(index, step, wasted=kept["wasted"], replayed=replayed)
        self._written[index] = len(rollout["steps"])

    def catch_up(self, rollouts: Iterable[RolloutState]) -> None:
        """Tell the gate of all steps and ends that it has not heard of."""
        for rollout in rollouts:
            self.write(rollout, replayed=True)
            index, status = rollout["index"], RolloutStatus(rollout["status"])
            actions = [step["action"] for step in rollout["steps"]]
            last = None
            if status.ended_normally and ended_with_a_step(rollout) and index not in self._ended:
                last = actions.pop()
            for action in actions[self._told[index] :]:
                self._log.report(index, action)
            self._told[index] = len(rollout["steps"])
            if index not in self._ended and status is not RolloutStatus.RUNNING:
                self._ended.add(index)
                self._end(rollout, status, last)

    def decisions(self) -> list[Plain]:
        """Every decision at a check position, as plain data."""
        return [decision_state(check) for check in self.gate.checks]

    def close(self, verdict: Verdict, rewards: Sequence[float | None]) -> None:
        """Write the group's end, and remember its rewards."""
        self._log.end(
            outcome=verdict["cut_as"],
            cut_at=verdict["cut_at"],
            survivor=verdict["survivor"],
            answer=verdict["answer"],
            late_veto=verdict["late_veto"],
        )
        if self._history is not None:
            was_cut = verdict["cut_as"] is not None
            self._history.record(self._task_id, self._log.group_id, rewards, was_cut=was_cut)

    def _end(self, rollout: RolloutState, status: RolloutStatus, last_action: str | None) -> None:
        index, wasted, lost = rollout["index"], rollout["wasted"], usage_of(rollout["lost"])
        if status is RolloutStatus.CUT:
            self._log.cut(index, lost=lost, wasted=wasted)
        elif status is RolloutStatus.FAILED:
            failure = rollout["failure"] or {}
            self._log.fail(index, failure["kind"], failure["message"], lost=lost, wasted=wasted)
        else:
            self._log.finish(
                index,
                rollout["reward"],
                rollout["answer"],
                truncated=status is RolloutStatus.TRUNCATED,
                last_action=last_action,
                lost=lost,
                wasted=wasted,
            )
