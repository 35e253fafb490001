"""A gate for TRL's asynchronous trainer (`trl.experimental.async_grpo`), which needs vLLM and aiohttp.

    trainer = AsyncGRPOTrainer(
        ..., rollout_worker=GatedRolloutWorker(gate=partial(TrainingGate, "gate.toml", mode="enforce"), ...)
    )

The rollouts of all groups run in one event loop of a process of their own. A cut closes the requests of the
group that are in flight, so that the server stops generating; running tools are left to end. A group that is
cut never reaches the trainer, so neither side of its loss sees it, and the loop begins the next prompt.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trl.experimental.async_grpo.async_rollout_worker import AsyncRolloutWorker, _AsyncRolloutLoop

from selective_rollout.actions import ActionOptions, from_message
from selective_rollout.actions.options import DEFAULT_OPTIONS
from selective_rollout.engine.training import GroupCut, TrainingGate, TrainingGroup, guarded
from selective_rollout.errors import ConfigError
from selective_rollout.types import SamplingInfo, Usage


@dataclass(slots=True)
class _Member:
    group: TrainingGroup
    rollout: int
    tokens: int = 0
    """Of its last turn."""
    completion: Any = None
    """What it handed over; the trainer's lists are in order of arrival, and this tells who is who."""


@dataclass(slots=True)
class _Group:
    group: TrainingGroup
    members: list[_Member] = field(default_factory=list)


_speaking: ContextVar[_Member] = ContextVar("speaking")


class GatedRolloutLoop(_AsyncRolloutLoop):
    """The loop of the child process; all other arguments go to TRL's.

    Args:
        gate: makes the run's gate; a function that pickles, since it is called in the child.
        task_column: column of the dataset with the prompt's own identity; None: the row's number.
        planned_updates: policy updates of the whole training, for a schedule; None: progress stays 0.
        state_path: where to keep the gate's state over restarts; None: nowhere.
        save_every: groups between two writes of the state.
        actions: how messages become actions.
    """

    def __init__(
        self,
        *,
        gate: Callable[[], TrainingGate],
        task_column: str | None = None,
        planned_updates: int | None = None,
        state_path: str | os.PathLike[str] | None = None,
        save_every: int = 16,
        actions: ActionOptions = DEFAULT_OPTIONS,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self.gate = gate()
        self._task_column = task_column
        self._planned_updates = planned_updates
        self._state_path = Path(state_path) if state_path is not None else None
        self._save_every = save_every
        self._options = actions
        self._run = uuid.uuid4().hex[:8]
        self._first_row = arguments.get("dataset_start_index", 0)
        self._tasks: dict[int, str] = {}
        self._groups: dict[int, _Group] = {}
        self._delivered = 0
        self._ended = 0
        self._load()

    def run(self) -> None:
        """Generate and score until told to stop; the state is written at the end, too."""
        try:
            super().run()
        finally:
            self._save()

    def _repeat_iterator(self) -> Iterator[tuple[int, dict[str, Any]]]:
        current, skipping, in_a_row = None, False, 0
        for number, row in super()._repeat_iterator():
            if number != current:
                current, task_id = number, self._task_of(number, row)
                # If every prompt of the dataset is skipped, the next one is taken all the same.
                skipping = in_a_row < len(self.dataset) and self.gate.skips(task_id, self._name(number))
                in_a_row = in_a_row + 1 if skipping else 0
                if not skipping:
                    self._tasks[number] = task_id
            if not skipping:
                yield number, row

    async def _generate_one(
        self, prompt: Any, tool_dict: dict[str, Any], tools: list[Any], group_id: int = 0
    ) -> Any:
        member = self._join(group_id)
        _speaking.set(member)
        try:
            result = await super()._generate_one(prompt, tool_dict=tool_dict, tools=tools, group_id=group_id)
        except GroupCut:
            result = [], [], [], 0, 0, None
        else:
            last = result[0][-1]
            member.group.finish(
                member.rollout,
                action=from_message(last, self._options),
                truncated=bool(last.get("tool_calls")),
                usage=Usage(completion=member.tokens, source="client"),
            )
        member.completion = result[0]
        return result

    async def _generate_one_turn(self, prompt_ids: list[int]) -> Any:
        member = _speaking.get()
        if not await member.group.permit(member.rollout):
            raise GroupCut(member.group.id)
        async with guarded(member.group, member.rollout):
            ids, logprobs = await super()._generate_one_turn(prompt_ids)
        member.tokens = len(ids)
        return ids, logprobs

    async def _execute_tool_calls(self, tool_calls: list[Any], tool_dict: dict[str, Any]) -> Any:
        member = _speaking.get()
        result = await super()._execute_tool_calls(tool_calls, tool_dict)
        go_on = member.group.step(
            member.rollout,
            from_message({"role": "assistant", "content": None, "tool_calls": tool_calls}, self._options),
            observation="\n".join(str(message["content"]) for message in result[0]),
            usage=Usage(completion=member.tokens, source="client"),
        )
        if not go_on:
            raise GroupCut(member.group.id)
        return result

    async def _score_group(self, group: Any) -> list[Any]:
        mine = self._groups.pop(group.group_id)
        samples: list[Any] = []
        if mine.group.stopped:
            mine.group.close()
        else:
            samples = await super()._score_group(group)
            mine.group.close([_reward_of(member, samples) for member in mine.members])
            for sample in samples:
                # The trainer resumes at the first number it has not trained on, so there must be no gaps.
                sample.group_id = self._delivered
            self._delivered += bool(samples)
        self._ended += 1
        self._push_metrics({**self.gate.meter.metrics(), "gate/enforcing": float(self.gate.enforcing)})
        if self._ended % self._save_every == 0:
            self._save()
        return samples

    def _join(self, number: int) -> _Member:
        mine = self._groups.get(number)
        if mine is None:
            planned = self._planned_updates
            self.gate.at(
                progress=min(1.0, self.model_version / planned) if planned else 0.0,
                policy_version=self.model_version,
            )
            group = self.gate.open(
                self._name(number),
                self.num_generations,
                task_id=self._tasks.pop(number),
                recorded_as=f"{self._name(number)}@{self._run}",
                sampling=[SamplingInfo(temperature=self.temperature)] * self.num_generations,
            )
            mine = self._groups[number] = _Group(group)
        member = _Member(mine.group, len(mine.members))
        mine.members.append(member)
        return member

    def _name(self, number: int) -> str:
        return f"from{self._first_row}-{number}"

    def _task_of(self, number: int, row: dict[str, Any]) -> str:
        if self._task_column is None:
            return str((self._first_row + number) % len(self.dataset))
        if self._task_column not in row:
            raise ConfigError(f"the dataset has no column {self._task_column!r}, which names the tasks")
        return str(row[self._task_column])

    def _load(self) -> None:
        path = self._state_path
        if path is not None and path.is_file():
            self.gate.load_state_dict(json.loads(path.read_text(encoding="utf-8")))

    def _save(self) -> None:
        path = self._state_path
        if path is not None:
            partial = path.with_name(path.name + ".partial")
            partial.write_text(json.dumps(self.gate.state_dict()), encoding="utf-8")
            os.replace(partial, path)


class GatedRolloutWorker(AsyncRolloutWorker):
    """The worker to hand to `AsyncGRPOTrainer`; takes the arguments of TRL's and of `GatedRolloutLoop`."""

    _loop_cls = GatedRolloutLoop


def _reward_of(member: _Member, samples: list[Any]) -> float | None:
    """The reward of a conversation, which stands on each of the rows that became of it; None: unscored."""
    for sample in samples:
        if sample.completion is member.completion:
            return float(sample.metrics["reward"])
    return None
