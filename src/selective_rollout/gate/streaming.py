"""The gate inside a step: completions are compared while they are still being generated.

A rollout's *stream* is everything its model has generated so far, over all its steps, as one sequence of
symbols. Position k compares the first k symbols of every member. A check is made once every member has
streamed more than k symbols or ended, so a decision depends on positions alone: not on the clock, not on who
was faster, and not on how the network cut the streams into chunks. The decision itself is `GroupGate`'s.

What one symbol is belongs to the rule and is never mixed: a token id as the server sent it, or a character of
the text (a Unicode code point). Reasoning is part of the stream: the model generated it, and it is paid for.
The pieces of tool calls have ids like all tokens; as characters, a call enters the stream when its completion
has ended, because pieces of parallel calls interleave as the server likes and half a call is no action.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

from selective_rollout.errors import ConfigError, GroupError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import GateDecision
from selective_rollout.gate.group import GroupGate
from selective_rollout.types import SamplingInfo

StreamLevel: TypeAlias = Literal["token", "char"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRule:
    """When a group counts as converged by its streams.

    There is no default for `level` and `tau`: distances of token ids, of characters and of actions are three
    scales, and no published threshold exists for the first two.

    Raises:
        ConfigError: a field is out of range; the message names it.
    """

    level: StreamLevel
    """What one symbol is: a token id, which the server must send, or a character."""
    tau: float
    """The group fires if the mean pairwise distance of its streams is < tau, strictly."""
    start: int = 256
    """First position that is checked; nothing fires before every member has streamed so many symbols."""
    check_every: int = 64
    """Symbols between two checks."""

    def __post_init__(self) -> None:
        if self.level not in get_args(StreamLevel):
            raise ConfigError(f"stream.level must be token or char, not {self.level!r}")
        if isinstance(self.tau, bool) or not isinstance(self.tau, int | float) or not 0.0 <= self.tau <= 1.0:
            raise ConfigError(f"stream.tau must be a number in [0, 1], not {self.tau!r}")
        for name in ("start", "check_every"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"stream.{name} must be a whole number >= 1, not {value!r}")

    def within(self, rule: GateConfig) -> GateConfig:
        """The rule for a `GroupGate` over symbols; outcome, vetoes and members as in the rule over steps."""
        return replace(
            rule,
            level="token",
            start_step=self.start,
            check_every=self.check_every,
            tau=self.tau,
            padding="end",
            score=None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data in field order."""
        return asdict(self)


class StreamGate:
    """Watches the streams of one group of `size` rollouts, numbered from 0.

    Symbols wait in a list until they complete a check, so that a piece of a stream costs a fraction of a
    microsecond. The newest one always waits: whether a member runs on beyond it or has ended there is only
    known by what comes next. Belongs to one event loop.

    Args:
        rule: the rule over symbols.
        gate: the group's rule over steps, for its outcome, vetoes and `min_members`.
        size: rollouts of the group.
        group_id: named in error messages.
        sampling: declared sampling facts, as for `GroupGate`.
        history: the prompt's earlier rewards, as for `GroupGate`.
        exact: compute the exact distance at every check.
    """

    def __init__(
        self,
        rule: StreamRule,
        gate: GateConfig,
        size: int,
        *,
        group_id: str = "",
        sampling: Sequence[SamplingInfo] | None = None,
        history: Sequence[float] | None = None,
        exact: bool = False,
    ) -> None:
        self.rule = rule
        self._gate = GroupGate(
            rule.within(gate), size, group_id=group_id, sampling=sampling, history=history, exact=exact
        )
        self._waiting: dict[int, list[Hashable]] = {rollout: [] for rollout in range(size)}
        """Symbols that the gate has not been told of, of the members whose streams go on."""
        self._told = [0] * size
        self._heard = [0] * size
        self._finished: set[int] = set()

    @property
    def size(self) -> int:
        """Rollouts of the group."""
        return self._gate.size

    @property
    def checks(self) -> tuple[GateDecision, ...]:
        """Every decision so far, in increasing k; `step` is the position k, in symbols."""
        return self._gate.checks

    @property
    def fired(self) -> GateDecision | None:
        """The decision that fired, also if a late veto turned it into keep afterwards."""
        return self._gate.fired

    @property
    def is_over(self) -> bool:
        """True once nothing that is still to come can lead to another check."""
        return self._gate.next_check is None

    def hear(self, rollout: int, symbols: Collection[Hashable]) -> GateDecision | None:
        """Append a piece of a rollout's stream, of any length. Nothing is taken in of one that has ended.

        Returns:
            The decision that this piece made possible, of several the last; None if it completed no check.

        Raises:
            GroupError: unknown rollout.
        """
        waiting = self._waiting_of(rollout)
        if waiting is None:
            return None
        self._heard[rollout] += len(symbols)
        check = self._gate.next_check
        if check is None:
            return None
        waiting.extend(symbols)
        return self._tell_all_due() if self._is_due(rollout, check) else None

    def finish(self, rollout: int, reward: object = None, answer: str | None = None) -> GateDecision | None:
        """The rollout ended normally; see `GroupGate.finish`. The end of a lost one says nothing.

        Returns:
            As `hear` does.

        Raises:
            GroupError: unknown rollout.
            RewardError: the reward is no number.
        """
        waiting = self._waiting_of(rollout)
        if waiting is None:
            return None
        last = waiting.pop() if waiting else None
        self._finished.add(rollout)
        return self._end(rollout, lambda: self._gate.finish(rollout, reward, answer, action=last))

    def lose(self, rollout: int) -> GateDecision | None:
        """The rollout failed, or its stream broke off and its completion begins again.

        It is absent at every position beyond what it had streamed. What comes of it from here on is ignored,
        since the same positions may read differently the second time.

        Returns:
            As `hear` does.

        Raises:
            GroupError: unknown rollout.
        """
        if self._waiting_of(rollout) is None:
            return None
        return self._end(rollout, lambda: self._gate.fail(rollout))

    def score(self, rollout: int, reward: object = None, answer: str | None = None) -> None:
        """Add a reward or answer that became known after the rollout's end; see `GroupGate.score`."""
        if rollout in self._finished:
            self._gate.score(rollout, reward, answer)

    def confirm(self) -> GateDecision:
        """The last look before a cut is carried out; see `GroupGate.confirm`."""
        return self._gate.confirm()

    def disable(self) -> None:
        """Switch the gate off for this group: it never fires from here on."""
        self._gate.disable()

    def _end(self, rollout: int, end: Callable[[], GateDecision]) -> GateDecision | None:
        waiting = self._waiting.pop(rollout)
        was_over = self.is_over
        said = [self._gate.extend(rollout, waiting)] if waiting else []
        said.append(end())
        made = [decision for decision in said if decision.checked and not was_over]
        return self._tell_all_due() or (made[-1] if made else None)

    def _tell_all_due(self) -> GateDecision | None:
        """Tell the gate of every member that has come to the next check, until no check is complete."""
        made = None
        while (check := self._gate.next_check) is not None:
            due = [rollout for rollout in self._waiting if self._is_due(rollout, check)]
            if not due:
                break
            for rollout in due:
                *symbols, newest = self._waiting[rollout]
                self._waiting[rollout] = [newest]
                self._told[rollout] += len(symbols)
                decision = self._gate.extend(rollout, symbols)
                made = decision if decision.checked else made
        return made

    def _is_due(self, rollout: int, check: int) -> bool:
        return self._told[rollout] < check < self._heard[rollout]

    def _waiting_of(self, rollout: int) -> list[Hashable] | None:
        """The symbols of a member that still wait; None for one that has ended."""
        if not 0 <= rollout < self.size:
            raise GroupError(f"there is no rollout {rollout!r}: the group has rollouts 0 to {self.size - 1}")
        return self._waiting.get(rollout)


class Characters:
    """The characters of one completion, from its pieces.

    JSON can spell a character beyond U+FFFF as two halves, which two chunks may part: the first half waits
    for the second. Half a character that stays alone is U+FFFD.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-16-le")("replace")

    def add(self, text: str) -> str:
        """The characters that this piece completes."""
        return self._decoder.decode(text.encode("utf-16-le", "surrogatepass"))

    def end(self) -> str:
        """What is left when the completion has ended."""
        return self._decoder.decode(b"", final=True)


@dataclass(frozen=True, slots=True)
class MemberStream:
    """One rollout's stream as recorded."""

    symbols: Sequence[Hashable]
    """Token ids, or the characters of a string."""
    finished: bool = True
    """It ended normally; otherwise it failed, broke off, or was stopped: absent beyond its symbols."""
    reward: float | None = None
    answer: str | None = None


def replay_streams(
    rule: StreamRule,
    gate: GateConfig,
    members: Sequence[MemberStream],
    *,
    sampling: Sequence[SamplingInfo] | None = None,
    history: Sequence[float] | None = None,
    exact: bool = False,
) -> tuple[GateDecision, ...]:
    """The decisions of a rule on recorded streams, up to the one that fires: those it would have made live.

    Args:
        rule: the rule over symbols, of the level that the streams were recorded at.
        gate: the rule over steps.
        members: one per rollout of the group.
        sampling: as declared then.
        history: the prompt's earlier rewards, if the rule reads them.
        exact: compute the exact distance at every check.
    """
    watch = StreamGate(rule, gate, len(members), sampling=sampling, history=history, exact=exact)
    for rollout, member in enumerate(members):
        watch.hear(rollout, member.symbols)
        if member.finished:
            watch.finish(rollout, member.reward, member.answer)
        else:
            watch.lose(rollout)
    return watch.checks
