"""What a group of agents settles once: stored beside its threads, and read, not settled again, on resume.

The threads hold what the rollouts said and did. Everything else that decides about a group is drawn, timed or
broken in one process: its audit draw, the rewards its prompt had then, a hold that took too long, a member
that failed before a check, the cut. It is kept as one plain record on a thread of the group's own,
`{group_id}/group`, and stored before anybody acts upon it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeAlias, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph

from selective_rollout.engine.config import RunConfig
from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import GateDecision
from selective_rollout.integrations.langgraph.decisions import decision_of, decision_state
from selective_rollout.integrations.langgraph.state import Plain, plain_copy
from selective_rollout.types import RolloutFailure

Saver: TypeAlias = BaseCheckpointSaver[Any]

LOST: Final = "lost"
"""The kind of failure of a member that the cut interrupted: it cannot take over from a survivor."""

_NODE: Final = "record"


@dataclass(frozen=True, slots=True)
class Identity:
    """Which group it is, and what is settled when it opens."""

    group_id: str
    task_id: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    attempt: int = 1
    audited: bool = False
    """Whether a would-be cut of this group runs on."""
    observed: bool = False
    """Whether the audits' alarm had rung when it opened, so that nothing is cut."""
    tau: float | None = None
    """The group's own threshold; None: the rule's."""
    past: Sequence[float] | None = None
    """The prompt's earlier rewards that the rule reads; None: it reads none."""
    past_p: float | None = None
    """`PromptHistory.p_zero_variance` of the prompt, for a score that reads it."""


class _Kept(TypedDict, total=False):
    record: Plain


class GroupRecord:
    """The record of one group. Without a saver it is kept in memory only, and every resume begins afresh.

    Args:
        saver: the agents' checkpointer, if they have one.
        group_id: the group.
    """

    def __init__(self, saver: Saver | None, group_id: str) -> None:
        self._store = _store_of(saver) if saver is not None else None
        self._thread: RunnableConfig = {"configurable": {"thread_id": f"{group_id}/group"}}
        self._group_id = group_id
        self._content: Plain = {}
        self._is_stored = True
        self._lock = asyncio.Lock()

    async def load(self) -> None:
        """Read what an earlier run stored."""
        if self._store is not None:
            snapshot = await self._store.aget_state(self._thread)
            self._content = dict(snapshot.values.get("record") or {})

    @property
    def is_known(self) -> bool:
        """Whether an earlier run has begun this group."""
        return bool(self._content)

    @property
    def is_done(self) -> bool:
        """Whether an earlier run has brought the group to its end, and closed it in the trace."""
        return bool(self._content.get("done"))

    @property
    def is_kept(self) -> bool:
        """Whether the gate has been switched off for the group."""
        return bool(self._content.get("kept"))

    @property
    def failures(self) -> dict[int, RolloutFailure]:
        """Members that a check, or the choice of a survivor, has counted out; they get no second chance."""
        failed = self._content.get("failed", {})
        return {int(index): RolloutFailure(**failure) for index, failure in failed.items()}

    @property
    def sampling(self) -> dict[int, Plain]:
        """What each rollout's model was asked with, as far as it was told."""
        return {int(index): settings for index, settings in self._content.get("sampling", {}).items()}

    def identity(self) -> Identity:
        """The group as it was opened, with the next attempt's number."""
        kept = dict(self._content["identity"])
        return Identity(**{**kept, "attempt": kept["attempt"] + 1})

    def cut(self, group_size: int) -> GateDecision | None:
        """The decision that cut the group, if one did."""
        plain = self._content.get("cut")
        return None if plain is None else decision_of(plain, group_size)

    def check(self, gate: GateConfig, config: RunConfig) -> None:
        """Hold the settings against those that the group was opened with.

        Raises:
            ConfigError: some differ; they are named.
        """
        before, now = self._content["settings"], _settings(gate, config)
        differing = [
            f"{name} {now.get(name)!r} instead of {before.get(name)!r}"
            for name in sorted({*before, *now})
            if now.get(name) != before.get(name)
        ]
        if differing:
            raise ConfigError(
                f"group {self._group_id!r} was opened under other settings, which a resumed group keeps: "
                f"{', '.join(differing)}"
            )

    async def open(self, identity: Identity, gate: GateConfig, config: RunConfig) -> None:
        """Store who the group is.

        Raises:
            ConfigError: its metadata is no plain data.
        """
        if self._store is None:
            return
        try:
            kept = plain_copy(asdict(identity), f"metadata of group {identity.group_id!r}")
        except TypeError as error:
            raise ConfigError(str(error)) from None
        self._change({"identity": kept, "settings": _settings(gate, config)})
        await self.saved()

    def settle(
        self,
        *,
        cut: GateDecision | None,
        is_kept: bool,
        failures: Mapping[int, RolloutFailure],
        sampling: Mapping[int, Plain],
    ) -> None:
        """Take what has been settled by now; what was on record stays."""
        failed: Plain = {str(index): asdict(failure) for index, failure in failures.items()}
        change: Plain = {"failed": {**failed, **self._content.get("failed", {})}}
        change["sampling"] = {str(index): settings for index, settings in sampling.items()}
        if cut is not None and "cut" not in self._content:
            change["cut"] = decision_state(cut)
        if is_kept:
            change["kept"] = True
        self._change(change)

    def close(self) -> None:
        """The group is over."""
        self._change({"done": True})

    async def saved(self) -> None:
        """Wait until all that was taken is stored."""
        if self._store is None or (self._is_stored and not self._lock.locked()):
            return
        async with self._lock:
            if not self._is_stored:
                self._is_stored = True
                try:
                    await self._store.aupdate_state(self._thread, {"record": self._content}, as_node=_NODE)
                except BaseException:
                    self._is_stored = False
                    raise

    def _change(self, change: Plain) -> None:
        if any(self._content.get(name) != value for name, value in change.items()):
            self._content = {**self._content, **change}
            self._is_stored = False


def _settings(gate: GateConfig, config: RunConfig) -> Plain:
    settings: Plain = plain_copy(
        {"group_size": config.group_size, "mode": config.mode, **gate.to_dict()}, "settings"
    )
    return settings


def _store_of(saver: Saver) -> Any:
    """A graph that keeps a record as its state, so that any kind of checkpointer stores it."""
    builder = StateGraph(_Kept)
    builder.add_node(_NODE, lambda state: {})
    builder.add_edge(START, _NODE)
    return builder.compile(checkpointer=saver)
