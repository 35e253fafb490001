"""`gated_group`: G runs of one agent as a group."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from langgraph.errors import GraphBubbleUp

from selective_rollout.actions import DEFAULT_OPTIONS, ActionOptions
from selective_rollout.draws import is_audited
from selective_rollout.engine.closing import write_end
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.loop import LoopThread
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.rule import GateFile, accepted_rule, warn_about
from selective_rollout.engine.sampling import SamplingWatch, warn_of_unknown_usage
from selective_rollout.errors import ConfigError, GroupError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.group import GroupGate
from selective_rollout.integrations.chat_models import FOLLOWING, ModelWatch, has_cache
from selective_rollout.integrations.langchain.desk import SEAT, Desk, Seat
from selective_rollout.integrations.langchain.messages import is_interrupted
from selective_rollout.trace.recorder import Recorder, log_of
from selective_rollout.types import Hold, Mode, SamplingInfo

T = TypeVar("T")
P = ParamSpec("P")


def gated_group(
    gate: GateConfig | GateFile,
    size: int = 8,
    *,
    mode: Mode = "observe",
    hold: Hold | None = None,
    hold_timeout_s: float = 120.0,
    audit_rate: float = 0.0,
    seed: int = 0,
    group_id: str | None = None,
    task_id: str | None = None,
    sampling: Sequence[SamplingInfo] | None = None,
    history: Sequence[float] | None = None,
    metadata: Mapping[str, Any] | None = None,
    actions: ActionOptions = DEFAULT_OPTIONS,
    answer_fn: Callable[[Any], str | None] | None = None,
    recorder: Recorder | None = None,
    certified: bool | GateFile = False,
) -> GatedGroup:
    """Open a group for the runs of an agent that carries `GroupGateMiddleware`.

    The block is entered by `async with` for runs that are coroutines (`run`), or by `with` for runs in
    threads (`call`; one thread per rollout, since a held one keeps its own). `outcome` is there once it is
    left.

    Args:
        gate: the decision rule, whose outcome is drop or survivor; or the path of a gate.toml, which may hold
            its certificate, too.
        size: rollouts of the group.
        mode: observe: record what the gate would do. enforce: carry it out.
        hold: who waits at a check for the slower ones; None: `all` for drop, `followers` for survivor.
        hold_timeout_s: a longer hold releases everybody and switches the gate off for the group.
        audit_rate: share of groups, drawn by id, whose would-be cut runs on.
        seed: base of that draw.
        group_id: explicit identity, from which the survivor is drawn; random by default.
        task_id: the independent unit of statistics; the group id by default.
        sampling: declared sampling facts, one per rollout, for the `identical_sampling` veto.
        history: the prompt's earlier rewards, for a rule with `history_mixed`.
        metadata: declared facts for the trace.
        actions: what counts as the same action.
        answer_fn: reads the answer out of what a run returned; None: `actions.default_answer` of the agent's
            last text, or, if that is empty, its structured response as the model wrote it.
        recorder: where to write the trace.
        certified: the rule comes with an accepted certificate, or the path of the gate.toml that certifies
            it. Enforcing a rule without one warns.

    Raises:
        ConfigError: a setting is out of range, the rule asks for what no middleware can do, or the
            certificate is not of this rule.
    """
    config = RunConfig(
        group_size=size,
        max_steps=sys.maxsize,  # how many steps there may be is for the agent to say
        mode=mode,
        hold=hold,
        audit_rate=audit_rate,
        hold_timeout_s=hold_timeout_s,
        seed=seed,
        actions=actions,
    )
    accepted = accepted_rule(gate, config, certified=certified)
    _check_rule(accepted.rule)
    warn_about(accepted.rule, config, accepted.certified)
    group_id = group_id or uuid.uuid4().hex
    samples = SamplingWatch(group_id, has_cache=has_cache())
    if sampling is None and samples.declared.cached:
        sampling = [samples.declared] * size
    tau = accepted.tau_for(metadata)
    return GatedGroup(
        GroupGate(accepted.rule, size, group_id=group_id, sampling=sampling, history=history, tau=tau),
        config,
        samples,
        task_id=task_id or group_id,
        sampling=sampling,
        history=history,
        metadata=metadata,
        answer_fn=answer_fn,
        recorder=recorder,
    )


def _check_rule(rule: GateConfig) -> None:
    if rule.outcome == "vote":
        raise ConfigError("gate.outcome must be drop or survivor in a gated_group, not vote")
    if rule.score is not None:
        raise ConfigError(
            "gate.score reads what the tools answered, and a gated_group decides before they run: "
            "use a rule without a score"
        )


def _has_uncounted_replies(outcome: GroupOutcome) -> bool:
    """Whether a reply arrived without its tokens; of requests that were cancelled nobody expects them."""
    steps = (step for rollout in outcome.group.rollouts for step in rollout.steps)
    return any(step.usage is not None and step.usage.completion is None for step in steps)


@dataclass(slots=True)
class _Run:
    """What one run returned, on its way out of the block that watches it."""

    result: Any = None


class GatedGroup:
    """A group that is open, made by `gated_group`; for one use."""

    def __init__(
        self,
        gate: GroupGate,
        config: RunConfig,
        samples: SamplingWatch,
        *,
        task_id: str,
        sampling: Sequence[SamplingInfo] | None,
        history: Sequence[float] | None,
        metadata: Mapping[str, Any] | None,
        answer_fn: Callable[[Any], str | None] | None,
        recorder: Recorder | None,
    ) -> None:
        self.id = gate.group_id
        self._answer_fn = answer_fn
        self._samples = samples
        self._outcome: GroupOutcome | None = None
        self._loop: LoopThread | None = None
        self._log = log_of(recorder, gate.group_id, gate=gate)
        enforced = config.mode == "enforce"
        audited = enforced and is_audited(config.seed, gate.group_id, config.audit_rate)
        self._desk = Desk(
            gate,
            self._log,
            config,
            task_id=task_id,
            metadata=metadata or {},
            audited=audited,
            samples=samples,
            has_answers=answer_fn is not None,
        )
        self._begin = partial(
            self._log.begin,
            size=gate.size,
            task_id=task_id,
            mode=config.mode,
            sampling=sampling,
            history=history if gate.config.history_mixed else None,
            audit=audited if enforced else None,
            metadata=metadata,
        )

    async def run(self, rollout: int, work: Coroutine[Any, Any, T]) -> T | None:
        """Run one rollout.

        Args:
            rollout: 0-based index.
            work: the agent's run that has not started yet, such as `agent.ainvoke(question)`. A run that was
                interrupted for a human goes on in a second call, with `Command(resume=...)`.

        Returns:
            What the run returned; None if it broke, which the outcome tells as data.

        Raises:
            GroupError: the group is not open, or the rollout unknown, under way or over.
        """
        if not asyncio.iscoroutine(work):
            raise GroupError(
                f"group {self.id!r}: run takes a coroutine that has not started, such as "
                f"agent.ainvoke(...), not {type(work).__name__}; it would not know its group"
            )
        try:
            with self._watched(rollout) as run:
                run.result = await work
            return run.result  # type: ignore[no-any-return]
        finally:
            work.close()  # no warning about one that was refused

    def call(self, rollout: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Run one rollout in this thread: `group.call(i, agent.invoke, question)`; see `run`.

        Raises:
            GroupError: the group is not open, or the rollout unknown, under way or over.
        """
        with self._watched(rollout) as run:
            run.result = work(*args, **kwargs)
        return run.result  # type: ignore[no-any-return]

    def score(self, rollout: int, reward: object) -> None:
        """Record the reward of a rollout that has ended; see `rewards.parse_reward`.

        Raises:
            GroupError: the rollout has not ended normally, or the group is not open.
            RewardError: the reward is no number.
        """
        self._open_loop().call(partial(self._desk.score, rollout, reward))

    @property
    def outcome(self) -> GroupOutcome:
        """What came of the group.

        Raises:
            GroupError: its block has not been left.
        """
        if self._outcome is None:
            raise GroupError(f"group {self.id!r} has no outcome before its block is left")
        return self._outcome

    def __enter__(self) -> Self:
        if self._loop is not None:
            raise GroupError(f"group {self.id!r} was opened before: make a new one with gated_group")
        self._begin()
        self._loop = LoopThread()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = self._open_loop()
        try:
            outcome = self._outcome = loop.call(partial(self._end, error))
        finally:
            loop.close()
        if outcome is not None and error is None and _has_uncounted_replies(outcome):
            warn_of_unknown_usage(outcome.ledger)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def _end(self, error: BaseException | None) -> GroupOutcome:
        """Close the desk; a block left by Ctrl-C or a cancellation stays unfinished in the trace."""
        outcome = self._desk.close()
        if error is None or isinstance(error, Exception):
            text = f"{type(error).__name__}: {error}" if error is not None else None
            write_end(self._log, outcome, error=text)
        return outcome

    @contextmanager
    def _watched(self, rollout: int) -> Iterator[_Run]:
        """Give the run its seat, and tell the desk how it ended. Only failures end here."""
        loop, desk, run = self._open_loop(), self._desk, _Run()
        loop.call(partial(desk.begin, rollout))
        watch = ModelWatch(rollout, self._samples)
        seat, following = SEAT.set(Seat(desk, loop, rollout)), FOLLOWING.set(watch)
        try:
            yield run
            answer = self._read_answer(run.result)
        except GraphBubbleUp:  # how LangGraph interrupts a graph that runs inside another one
            loop.call(partial(desk.interrupted, rollout))
            raise
        except Exception as error:
            kind = "timeout" if isinstance(error, TimeoutError) else "error"
            loop.call(partial(desk.failed, rollout, kind, f"{type(error).__name__}: {error}"))
        except BaseException as error:
            lost = len(watch.requests)
            loop.call(partial(desk.failed, rollout, "cancelled", type(error).__name__, unanswered=lost))
            raise
        else:
            loop.call(partial(desk.returned, rollout, run.result, answer))
        finally:
            SEAT.reset(seat)
            FOLLOWING.reset(following)

    def _read_answer(self, result: Any) -> str | None:
        """What the user's own function reads; it is not shown runs that wait for a human."""
        if self._answer_fn is None or is_interrupted(result):
            return None
        return self._answer_fn(result)

    def _open_loop(self) -> LoopThread:
        if self._loop is None or self._loop.closed:
            raise GroupError(f"group {self.id!r} is not open: use it inside its with block")
        return self._loop
