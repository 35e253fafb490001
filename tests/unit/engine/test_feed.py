"""Groups that are watched inside a step: cut in mid-sentence, observed, audited, replayed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selective_rollout.draws import survivor_order
from selective_rollout.engine.batch import run_groups
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.feed import NoTokenIdsWarning
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.rule import UncertifiedGateWarning
from selective_rollout.engine.runner import Workshop, run_group
from selective_rollout.env.base import Observation, StepResult
from selective_rollout.errors import ConfigError, PolicyError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import Reason, judge
from selective_rollout.gate.streaming import StreamRule, replay_streams
from selective_rollout.policy.base import Completion, Message, Piece, RequestInfo
from selective_rollout.testing import Reply, ScriptedBrain, ScriptedPolicy
from selective_rollout.testing.brains import ToolCall
from selective_rollout.trace.reader import RecordedGroup, read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import Task

G = 4
TASK = Task("g", "Say it.")
STEPS = GateConfig(start_step=5)
RULE = StreamRule(level="token", tau=0.2, start=20, check_every=10)
Say = Callable[[int, int], Reply | str]


class Room:
    """Ends after two answers; the last one is the rollout's answer."""

    replayable = True

    def __init__(self, task: Task, rollout: int) -> None:
        self.said: list[str] = []

    def start(self) -> Observation:
        return Observation("Speak.")

    def step(self, action: str) -> StepResult:
        self.said.append(action)
        over = len(self.said) == 2
        return StepResult("go on", reward=1.0 if over else None, terminated=over, answer=action[-1:])

    def close(self) -> None:
        pass


def brain(say: Say) -> ScriptedBrain:
    def reply(request: dict[str, Any], choice: int, seed: int | None) -> Reply | str:
        step = sum(message["role"] == "assistant" for message in request["messages"]) + 1
        return say(choice, step)

    return ScriptedBrain(reply)


def alike(rollout: int, step: int) -> str:
    return " ".join(["word"] * 40 + [f"end{rollout}"])


def same(rollout: int, step: int) -> str:
    return alike(0, step)


def apart(rollout: int, step: int) -> str:
    return " ".join(f"own{rollout}{i}" for i in range(40))


async def run(
    say: Say,
    stream: StreamRule | None = RULE,
    *,
    gate: GateConfig = STEPS,
    recorder: Recorder | None = None,
    policy: Any = None,
    **config: Any,
) -> tuple[GroupOutcome, Any]:
    policy = policy or ScriptedPolicy(brain(say))
    settings = RunConfig(group_size=G, stream=stream, **{"mode": "enforce", **config})
    outcome = await run_group(
        TASK, policy=policy, environment=Room, gate=gate, config=settings, recorder=recorder
    )
    return outcome, policy


def statuses(outcome: GroupOutcome) -> list[str]:
    return [rollout.status.value for rollout in outcome.group.rollouts]


async def recorded(path: Path, say: Say, stream: StreamRule = RULE, **config: Any) -> RecordedGroup:
    with Recorder(path / "t.jsonl", record_completions=True) as recorder:
        await run(say, stream, recorder=recorder, **config)
    [group] = read_groups(path)
    return group


class TestEnforce:
    async def test_a_converged_group_is_cut_in_mid_sentence(self) -> None:
        outcome, policy = await run(alike)
        assert statuses(outcome) == ["cut"] * G
        assert (outcome.stream_cut_at, outcome.cut_at, outcome.would_cut_at) == (20, None, None)
        assert outcome.cut_as == "drop"
        assert len(policy.cancelled) == G
        assert policy.completion_tokens <= G * 23, "a token or so beyond the check, of 42"
        assert outcome.ledger.completion == policy.completion_tokens
        assert outcome.ledger.overrun <= G

    async def test_a_diverged_group_runs_to_its_end(self) -> None:
        outcome, policy = await run(apart)
        assert statuses(outcome) == ["finished"] * G
        assert outcome.cut_as is None
        assert outcome.stream_cut_at is outcome.stream_would_cut_at is None
        assert [d.reason for d in outcome.stream_decisions] == [Reason.DISTANCE] * len(
            outcome.stream_decisions
        )
        assert not policy.cancelled

    async def test_positions_count_the_symbols_of_all_steps(self) -> None:
        def late(rollout: int, step: int) -> str:
            return "short answer" if step == 1 else alike(rollout, step)

        outcome, _ = await run(late)
        assert outcome.stream_cut_at == 20
        assert all(len(rollout.steps) == 1 for rollout in outcome.group.rollouts)

    async def test_one_survivor_speaks_on_and_answers(self) -> None:
        outcome, policy = await run(alike, gate=GateConfig(start_step=5, outcome="survivor"))
        survivor = survivor_order("g", G)[0]
        assert outcome.survivor == survivor
        assert outcome.answer == str(survivor)
        assert statuses(outcome) == ["finished" if i == survivor else "cut" for i in range(G)]
        assert len(policy.cancelled) == G - 1

    async def test_a_broken_survivor_hands_over(self) -> None:
        first, second = survivor_order("g", G)[:2]

        class Breaks(ScriptedPolicy):
            async def complete(self, messages: Any, info: RequestInfo) -> Completion:
                done = await super().complete(messages, info)
                if info.rollout == first:
                    raise PolicyError("gone", "server")
                return done

        rule = GateConfig(start_step=5, outcome="survivor")
        outcome, _ = await run(alike, gate=rule, policy=Breaks(brain(alike)))
        assert outcome.survivor == second
        assert outcome.answer == str(second)

    async def test_a_cut_between_steps_silences_the_stream_gate(self) -> None:
        rule = StreamRule(level="token", tau=0.2, start=60, check_every=1)
        outcome, _ = await run(same, rule, gate=GateConfig(start_step=1))
        assert outcome.cut_at == 1
        assert outcome.stream_cut_at is outcome.stream_would_cut_at is None

    async def test_drained_completions_end_and_count_as_overrun(self) -> None:
        outcome, policy = await run(alike, stop="drain")
        assert statuses(outcome) == ["cut"] * G
        assert not policy.cancelled
        assert outcome.ledger.overrun == sum(i.meter.completion for i in policy.requests) - sum(
            [21, 21, 21, 21]
        )

    async def test_an_exact_vote_is_not_interrupted(self) -> None:
        outcome, _ = await run(same, gate=GateConfig(start_step=5, outcome="vote"))
        assert outcome.answer == "0"
        assert outcome.stream_cut_at is None

    async def test_no_certificate_covers_it(self) -> None:
        settings = RunConfig(group_size=G, mode="enforce", stream=RULE, max_steps=2)
        shop = Workshop(ScriptedPolicy(brain(apart)), Room, GateConfig(start_step=1), settings)
        with pytest.warns(UncertifiedGateWarning, match="stream rule"):
            outcomes = [outcome async for outcome in run_groups([TASK], shop, certified=True)]
        assert [outcome.cut_as for outcome in outcomes] == [None]

    async def test_rules_over_tokens_have_one_place(self) -> None:
        with pytest.raises(ConfigError, match="StreamRule"):
            await run(alike, None, gate=GateConfig(level="token"))


class TestObserve:
    async def test_nobody_is_stopped_and_both_gates_are_on_record(self, tmp_path: Path) -> None:
        group = await recorded(tmp_path, same, mode="observe", gate=GateConfig(start_step=1))
        assert [d.step for d in group.decisions] == [1]
        assert [(d.step, d.fires) for d in group.stream_decisions] == [(20, True)]
        assert group.end is not None
        assert (group.end.would_cut_at, group.end.stream_would_cut_at) == (1, 20)
        assert group.end.outcome is None
        assert group.begin.stream is not None
        assert StreamRule(**{f: getattr(group.begin.stream, f) for f in RULE.to_dict()}) == RULE

    async def test_audited_groups_run_on(self, tmp_path: Path) -> None:
        group = await recorded(tmp_path, alike, audit_rate=1.0)
        assert group.end is not None
        assert (group.end.outcome, group.end.stream_would_cut_at) == (None, 20)


class TestReplay:
    @pytest.mark.parametrize("level", ["token", "char"])
    @pytest.mark.parametrize("say", [alike, apart])
    async def test_a_recorded_run_replays_to_its_decisions(
        self, tmp_path: Path, say: Say, level: Any
    ) -> None:
        rule = StreamRule(level=level, tau=0.2, start=20, check_every=10)
        group = await recorded(tmp_path, say, rule, mode="observe")
        members = [group.streams[g] for g in range(G)]
        again = replay_streams(rule, STEPS, members, sampling=group.group.sampling)
        assert [(d.step, d.reason, d.facts) for d in again] == [
            (d.step, d.reason, d.facts) for d in group.stream_decisions
        ]
        for decision in group.stream_decisions:
            assert decision.facts is not None
            assert judge(rule.within(STEPS), decision.facts) is decision.reason

    async def test_streams_are_recorded_with_completions_only(self, tmp_path: Path) -> None:
        with Recorder(tmp_path / "t.jsonl") as recorder:
            await run(alike, recorder=recorder, mode="observe")
        [group] = read_groups(tmp_path)
        assert group.streams == {}
        assert len(group.stream_decisions) == 1

    async def test_redaction_covers_streams(self, tmp_path: Path) -> None:
        rule = StreamRule(level="char", tau=0.2)
        for name, stream in (("char", rule), ("token", RULE)):
            path = tmp_path / f"{name}.jsonl"
            redact = lambda text: text.replace("word", "****")  # noqa: E731
            with Recorder(path, record_completions=True, redact=redact) as recorder:
                await run(alike, stream, recorder=recorder, mode="observe")
            ends = [
                event
                for line in path.read_text().splitlines()
                if (event := json.loads(line))["type"] == "rollout_end"
            ]
            assert "word" not in path.read_text()
            assert [("stream" in end) for end in ends] == [name == "char"] * G


class Silent(ScriptedPolicy):
    """A policy that does not stream."""

    async def complete(self, messages: Any, info: RequestInfo) -> Completion:
        quiet = RequestInfo(info.group_id, info.rollout, info.step, info.seed, meter=info.meter)
        return await super().complete(messages, quiet)


class TestSymbols:
    async def test_a_completion_that_was_not_streamed_is_heard_at_its_end(self) -> None:
        rule = StreamRule(level="char", tau=0.2, start=20, check_every=10)
        outcome, _ = await run(alike, rule, policy=Silent(brain(alike)))
        assert outcome.stream_cut_at == 20

    async def test_missing_ids_are_not_made_up(self) -> None:
        with pytest.warns(NoTokenIdsWarning, match="return_token_ids"):
            outcome, _ = await run(alike, policy=Silent(brain(alike)))
        assert statuses(outcome) == ["finished"] * G
        assert outcome.stream_decisions == ()

    async def test_calls_enter_whole_and_in_order_and_reasoning_counts(self, tmp_path: Path) -> None:
        """Case tool-call-delta-fragments: the fragments of two calls interleave."""
        calls = (ToolCall("open", '{"id":1}'), ToolCall("open", '{"id":2}'))

        def call(rollout: int, step: int) -> Reply:
            return Reply(content="I open", tool_calls=calls, reasoning="hmm ")

        rule = StreamRule(level="char", tau=0.5, start=11, check_every=1)
        group = await recorded(tmp_path, call, rule, mode="observe")
        said = 'hmm I openopen({"id":1})open({"id":2})'
        assert group.streams[0].symbols == said * 2

    async def test_no_check_falls_inside_a_half_call(self) -> None:
        calls = (ToolCall("open", '{"id":1}'), ToolCall("open", '{"id":2}'))
        heard: list[int] = []

        class Watching(ScriptedPolicy):
            async def complete(self, messages: Any, info: RequestInfo) -> Completion:
                done = await super().complete(messages, info)
                heard.append(len(checks()))
                return done

        policy = Watching(brain(lambda rollout, step: Reply(tool_calls=calls)))
        checks: Callable[[], list[Any]] = lambda: []  # noqa: E731
        rule = StreamRule(level="char", tau=0.0, start=1, check_every=1)
        outcome, _ = await run(alike, rule, policy=policy, mode="observe")
        assert outcome.stream_decisions
        assert set(heard) == {0}

    async def test_a_retry_voids_what_was_heard_before(self) -> None:
        """A stream that breaks off and begins again is absent from there on, and is not compared twice."""

        class Stutters:
            async def complete(self, messages: list[Message], info: RequestInfo) -> Completion:
                info.meter.started = True
                listener = info.listener
                assert listener is not None
                for attempt in range(2 if info.rollout == 0 else 1):
                    for i in range(30):
                        listener.heard(Piece("x", (i + 100 * attempt * info.step,)))
                    if info.rollout == 0 and attempt == 0:
                        listener.broke()
                return Completion({"role": "assistant", "content": "x" * 30}, finish_reason="stop")

            async def aclose(self) -> None:
                pass

        rule = StreamRule(level="token", tau=0.2, start=40, check_every=100)
        outcome, _ = await run(alike, rule, policy=Stutters(), mode="observe")
        [decision] = outcome.stream_decisions
        assert decision.facts is not None
        assert decision.facts.members == (1, 2, 3)
        assert decision.fires
