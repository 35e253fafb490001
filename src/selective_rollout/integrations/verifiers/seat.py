"""One rollout of verifiers as its group sees it: steps and ends are read from the trace as it grows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final
from weakref import WeakValueDictionary

from verifiers.v1 import Trace

from selective_rollout.actions import ActionOptions, from_message
from selective_rollout.engine.training import Facts, TrainingGroup
from selective_rollout.types import SamplingInfo, Usage

STOP_CONDITION: Final = "group_gate"
"""What verifiers records as the end of a rollout whose group was cut: the name of the hook."""

_NEVER_BEGAN: Final = "setup_timeout"

_SEATS: Final[WeakValueDictionary[str, Seat]] = WeakValueDictionary()
"""By the traces' ids. A trace keeps its seat alive, by what watches it."""


def seat_of(trace: Trace) -> Seat | None:
    """Return the seat of a trace, if it has one."""
    return _SEATS.get(trace.id)


class Seat:
    """Tells a group what a trace says, and stops the rollout when the group is cut.

    Args:
        group: the group.
        rollout: which of its rollouts this is. None: a further attempt of one that has ended; it decides
            nothing, and stops with the group.
        trace: the trace, which is only read, but for its stop condition.
        options: how messages become actions.
        on_change: called when the rollout has ended, and again when it was scored.
    """

    def __init__(
        self,
        group: TrainingGroup,
        rollout: int | None,
        trace: Trace,
        options: ActionOptions,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._group = group
        self._rollout = rollout
        self._trace = trace
        self._options = options
        self._on_change = on_change
        self._nodes = 0
        """How many of the trace's nodes have been read."""
        self._requests: set[asyncio.Task[Any]] = set()
        self.ended = rollout is None
        _SEATS[trace.id] = self
        if rollout is not None:
            group.on_stop(rollout, self._stop)
            _also_watch(trace, self._changed)

    @property
    def settled(self) -> bool:
        """Whether nothing more is to come: neither steps nor a reward."""
        return self.ended and bool(self._trace.timing.scoring.end or self._trace.errors)

    @property
    def reward(self) -> float | None:
        """What the rollout was given; None if it is unscored, or not wholly scored."""
        rewards = self._trace.rewards.values()
        return float(self._trace.reward) if rewards and None not in rewards else None

    async def refuses(self) -> bool:
        """Whether the model call that the current task is about to make must not be made."""
        if self.ended or self._rollout is None:
            return self._group.stopped
        for action, facts in self._news():
            self._group.step(self._rollout, action, **facts)
        if not await self._group.permit(self._rollout):
            return True
        request = asyncio.current_task()
        if request is not None:
            self._requests.add(request)
            request.add_done_callback(self._requests.discard)
        return False

    def end(self) -> None:
        """The rollout is over: tell the group how, unless it knows."""
        if self.ended or self._rollout is None:
            return
        self.ended = True
        trace, news = self._trace, list(self._news())
        if trace.errors or trace.stop_condition == _NEVER_BEGAN:
            for action, facts in news:
                self._group.step(self._rollout, action, **facts)
            error = trace.errors[-1] if trace.errors else None
            self.fail(error.type if error else _NEVER_BEGAN, error.message if error else "")
            return
        # The last action goes with the end, so that a check at this very step sees both.
        for action, facts in news[:-1]:
            self._group.step(self._rollout, action, **facts)
        last = news[-1] if news else None
        self._group.finish(
            self._rollout,
            action=last[0] if last else None,
            truncated=trace.is_truncated or trace.is_timeout,
            **(last[1] if last else Facts()),
        )

    def fail(self, kind: str, message: str) -> None:
        """The rollout broke, or was given up."""
        self.ended = True
        if self._rollout is not None:
            self._group.fail(self._rollout, kind, message)

    def leave(self) -> None:
        """The group is closed: from here on the seat only tells whether it was cut."""
        self.ended = True

    def _news(self) -> Iterator[tuple[str, Facts]]:
        """Actions of the turns that came since the last look.

        Their observations come with the next request only, and are left out.
        """
        nodes, calls = self._trace.nodes, {call.node: call for call in self._trace.calls}
        first, self._nodes = self._nodes, len(nodes)
        for index in range(first, len(nodes)):
            message = nodes[index].message
            if nodes[index].sampled:
                call = calls.get(index)
                facts = Facts(
                    completion=message.content,
                    usage=_usage_of(call),
                    finish_reason=call.finish_reason if call is not None else None,
                )
                yield from_message(message, self._options), facts

    def _changed(self) -> None:
        trace = self._trace
        if trace.timing.agent.end or trace.errors or trace.is_timeout:
            self.end()
            self._on_change()

    def _stop(self) -> None:
        """Break off what is in flight: the trace ends first, so that this is no failure of the agent."""
        self._trace.stop(STOP_CONDITION)
        for request in self._requests:
            if request is not asyncio.current_task():
                request.cancel()


def sampling_info(sampling: Any) -> SamplingInfo:
    """Return what verifiers' sampling settings declare, which all rollouts of a group share."""
    seed = (sampling.model_extra or {}).get("seed")
    return SamplingInfo(temperature=sampling.temperature, seed=seed if isinstance(seed, int) else None)


def _usage_of(call: Any) -> Usage:
    if call is None or call.usage is None:
        return Usage()
    told = call.usage
    return Usage(
        prompt=told.input_tokens,
        cached=told.cached_input_tokens,
        completion=told.completion_tokens,
        reasoning=told.reasoning_tokens,
        source="server",
    )


def _also_watch(trace: Trace, changed: Callable[[], None]) -> None:
    """Watch a trace beside whoever watches it already, such as the server of an environment."""
    before = trace._on_change

    def both(trace: Trace) -> None:
        if before is not None:
            before(trace)
        changed()

    trace.watch(both)
