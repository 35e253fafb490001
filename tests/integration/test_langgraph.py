"""The graph under the real LangGraph: shape, counts, the engine's decisions, failures, sync and async."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.graph import END, START, StateGraph

from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.rule import UncertifiedGateWarning
from selective_rollout.engine.runner import run_group
from selective_rollout.engine.survivor import survivor_order
from selective_rollout.env.base import Observation, StepResult
from selective_rollout.errors import ConfigError, EnvironmentFault, PolicyError, TraceError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.decision import Reason
from selective_rollout.integrations.langgraph import GroupContext, GroupGraph, GroupResult, build_graph
from selective_rollout.policy.base import Completion, Message, RequestInfo
from selective_rollout.testing import Reply, ScriptedBrain, ScriptedPolicy, ToolCall, TutorialBrain
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.types import RolloutStatus, Task, Usage

G = 8
STEPS = 7
PROMPT = {"prompt": "Where is the mug?", "group_id": "g"}
RULE = GateConfig(start_step=3)
SURVIVE = replace(RULE, outcome="survivor")
ENFORCE = RunConfig(mode="enforce")
ALIKE, UNLIKE = TutorialBrain(1.0, steps=STEPS), TutorialBrain(0.0, steps=STEPS)

Line = str | Exception
"""What a scripted rollout does in one step."""


class Scripted:
    """Says `script[rollout][step - 1]`, or raises it; a token a word."""

    def __init__(self, script: Sequence[Sequence[Line]]) -> None:
        self.script = script
        self.asked: list[tuple[int, int]] = []

    async def complete(self, messages: Sequence[Message], info: RequestInfo) -> Completion:
        self.asked.append((info.rollout, info.step))
        info.meter.started = True
        line = self.script[info.rollout][info.step - 1]
        await asyncio.sleep(0)
        if isinstance(line, Exception):
            info.meter.completion = 2
            raise line
        usage = Usage(prompt=len(messages), completion=len(line.split()), source="server")
        finish = "length" if line == "endless" else "stop"
        return Completion({"role": "assistant", "content": line}, usage, finish)

    async def aclose(self) -> None:
        pass


class World:
    """Ends at `answer(x)`: reward 1 for the desk; breaks at `break`."""

    replayable = True
    open = 0

    def __init__(self, task: Task, rollout: int) -> None:
        World.open += 1

    def start(self) -> Observation:
        return Observation("You stand in a room.")

    async def step(self, action: str) -> StepResult:
        if action == "break":
            raise EnvironmentFault("the world fell apart")
        if action.startswith("answer("):
            place = action.removeprefix("answer(").rstrip(")")
            return StepResult("done", reward=float(place == "desk"), terminated=True, answer=place)
        return StepResult(f"you did {action}", is_error=action == "odd")

    def close(self) -> None:
        World.open -= 1


@pytest.fixture(autouse=True)
def _every_world_is_closed() -> Any:
    World.open = 0
    yield
    assert World.open == 0


def graph_of(policy: Any, gate: GateConfig = RULE, config: RunConfig = ENFORCE, **options: Any) -> GroupGraph:
    return build_graph(policy, gate=gate, config=config, certified=True, **options)


def run(policy: Any, gate: GateConfig = RULE, config: RunConfig = ENFORCE, **options: Any) -> GroupResult:
    return GroupResult.from_state(graph_of(policy, gate, config, **options).invoke(PROMPT))


def statuses(result: GroupResult) -> list[str]:
    return [rollout.status.value for rollout in result.rollouts]


class TestShape:
    def test_it_compiles_with_nothing_set(self) -> None:
        assert set(build_graph().get_graph().nodes) == {
            "__start__",
            "open",
            "rollout_step",
            "gate",
            "finish",
            "__end__",
        }

    def test_it_can_be_drawn(self) -> None:
        drawing = build_graph().get_graph().draw_mermaid()
        for edge in ("open -.-> rollout_step", "rollout_step --> gate", "gate -.-> rollout_step"):
            assert edge in drawing

    def test_its_settings_make_a_form(self) -> None:
        schema = build_graph().get_context_jsonschema()
        assert schema is not None
        assert {"group_size", "tau", "mode", "outcome"} <= set(schema["properties"])

    def test_a_copy_is_a_group_graph_too(self) -> None:
        graph = graph_of(ScriptedPolicy(ALIKE)).with_config(tags=["mine"])
        assert isinstance(graph, GroupGraph)
        assert graph.invoke(PROMPT)["status"] == "cut"


class TestCounts:
    def test_a_converged_group_is_dropped_at_the_check(self) -> None:
        policy = ScriptedPolicy(ALIKE)
        result = run(policy)
        assert (result.status, result.cut_as, result.cut_at, result.trainable) == ("cut", "drop", 3, False)
        assert len(policy.requests) == G * 3
        assert statuses(result) == ["cut"] * G
        assert [r.reward for r in result.rollouts] == [None] * G

    def test_one_survivor_answers_for_a_converged_group(self) -> None:
        policy = ScriptedPolicy(ALIKE)
        result = run(policy, SURVIVE)
        survivor = survivor_order("g", G)[0]
        assert (result.cut_at, result.survivor, result.answer) == (3, survivor, "yes")
        assert len(policy.requests) == G * 3 + (STEPS - 3)
        assert (dict(result.votes), result.inferred_votes) == ({"yes": 1}, G - 1)
        assert [ledger.requests for ledger in result.ledgers] == [
            STEPS if index == survivor else 3 for index in range(G)
        ]

    @pytest.mark.parametrize("gate", [RULE, SURVIVE])
    def test_a_divergent_group_runs_on(self, gate: GateConfig) -> None:
        policy = ScriptedPolicy(UNLIKE)
        result = run(policy, gate)
        assert (result.status, result.cut_at, result.trainable) == ("finished", None, True)
        assert len(policy.requests) == G * STEPS
        assert [d.reason for d in result.decisions] == [Reason.DISTANCE]
        assert sum(result.votes.values()) == G

    def test_observe_never_stops(self) -> None:
        policy = ScriptedPolicy(ALIKE)
        result = run(policy, SURVIVE, RunConfig())
        assert (result.status, result.cut_at, result.would_cut_at) == ("finished", None, 3)
        assert len(policy.requests) == G * STEPS
        assert (result.votes["yes"], result.inferred_votes, result.answer) == (G, 0, "yes")

    def test_an_audited_group_runs_on(self) -> None:
        result = run(ScriptedPolicy(ALIKE), config=replace(ENFORCE, audit_rate=1.0))
        assert (result.audited, result.cut_at, result.would_cut_at) == (True, None, 3)
        assert statuses(result) == ["finished"] * G

    def test_a_decided_vote_stops_the_rest(self) -> None:
        policy = ScriptedPolicy(ALIKE)
        result = run(policy, replace(RULE, outcome="vote"))
        assert (result.cut_as, result.cut_at, result.answer) == ("vote", None, "yes")
        assert len(policy.requests) == (G // 2 + 1) * STEPS
        assert result.inferred_votes == G // 2 - 1

    def test_tau_zero_never_fires_and_says_so(self) -> None:
        policy = ScriptedPolicy(ALIKE)
        with pytest.warns(UserWarning, match="tau is 0.*never fire"):
            graph_of(policy, GateConfig(start_step=3, tau=0.0)).invoke(PROMPT)
        assert len(policy.requests) == G * STEPS


LINE = st.sampled_from(["go", "look", "odd", "open box", "answer(desk)", "answer(shelf)"])
BAD = st.sampled_from([PolicyError("no answer", "timeout"), RuntimeError("bug"), "break", "endless"])


@st.composite
def groups(draw: st.DrawFn) -> list[list[Line]]:
    """Scripts of three or four rollouts that are partly alike, end early, or break."""
    common = draw(st.lists(st.sampled_from(["go", "look"]), min_size=6, max_size=6))
    size = draw(st.integers(3, 4))
    script: list[list[Line]] = [list(common) for _ in range(size)]
    for rollout, step in draw(st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, 5)), max_size=4)):
        script[rollout][step] = draw(st.one_of(LINE, LINE, BAD))
    return script


class TestSameAsTheEngine:
    @settings(max_examples=15)
    @given(
        script=groups(),
        outcome=st.sampled_from(["drop", "survivor"]),
        check_every=st.sampled_from([None, 1, 2]),
        tau=st.sampled_from([0.12, 0.4]),
        mode=st.sampled_from(["observe", "enforce"]),
        audit_rate=st.sampled_from([0.0, 0.5]),
        seed=st.integers(0, 3),
    )
    async def test_for_any_script(
        self, script: Any, outcome: Any, check_every: Any, tau: Any, mode: Any, audit_rate: Any, seed: Any
    ) -> None:
        gate = GateConfig(start_step=2, outcome=outcome, check_every=check_every, tau=tau)
        config = RunConfig(
            group_size=len(script), max_steps=6, mode=mode, audit_rate=audit_rate, seed=seed, hold="all"
        )
        task = Task("g", PROMPT["prompt"])
        outcomes = await run_group(task, policy=Scripted(script), environment=World, gate=gate, config=config)
        policy = Scripted(script)
        graph = graph_of(policy, gate, config, environment=World)
        result = GroupResult.from_state(await graph.ainvoke(PROMPT))
        assert plain(result) == plain(outcomes)
        assert len(policy.asked) == result.ledger.requests

    async def test_for_a_vote(self) -> None:
        gate = replace(RULE, outcome="vote")
        outcome = await run_group(
            Task("g", PROMPT["prompt"]),
            policy=ScriptedPolicy(ALIKE),
            environment=World,
            gate=gate,
            config=ENFORCE,
        )
        result = GroupResult.from_state(
            await graph_of(ScriptedPolicy(ALIKE), gate, environment=World).ainvoke(PROMPT)
        )
        assert (result.cut_as, result.answer) == (outcome.cut_as, outcome.answer)

    async def test_the_trace_reads_the_same(self, tmp_path: Any) -> None:
        script = [["go", "look", "go", "answer(desk)"]] * 3 + [["go", "look", PolicyError("gone", "timeout")]]
        config = RunConfig(mode="enforce", group_size=4, hold="all", max_steps=4)
        with Recorder(tmp_path / "engine.jsonl") as recorder:
            await run_group(
                Task("g", PROMPT["prompt"]),
                policy=Scripted(script),
                environment=World,
                gate=SURVIVE,
                config=config,
                recorder=recorder,
            )
        with Recorder(tmp_path / "graph.jsonl") as recorder:
            await graph_of(Scripted(script), SURVIVE, config, environment=World, recorder=recorder).ainvoke(
                PROMPT
            )
        (engine,), (graph,) = (list(read_groups(tmp_path / f"{name}.jsonl")) for name in ("engine", "graph"))
        assert replace(engine, where="") == replace(graph, where="")
        assert graph.lost == 2


class Outer(TypedDict, total=False):
    prompt: str
    status: str
    mood: str


def plain(outcome: GroupOutcome) -> dict[str, Any]:
    """All that engine and graph must agree on."""
    names = ("cut_as", "cut_at", "would_cut_at", "audited", "late_veto", "survivor", "answer", "decisions")
    return {
        "group": outcome.group,
        "ledger": outcome.ledger,
        **{name: getattr(outcome, name) for name in names},
    }


class TestStateAndCalling:
    async def test_all_four_ways_agree(self) -> None:
        graph = graph_of(ScriptedPolicy(ALIKE), SURVIVE)
        states = [
            graph.invoke(PROMPT),  # inside a running loop
            await graph.ainvoke(PROMPT),
            list(graph.stream(PROMPT, stream_mode="values"))[-1],
            [part async for part in graph.astream(PROMPT, stream_mode="values")][-1],
        ]
        states += [await asyncio.to_thread(graph.invoke, PROMPT)]
        for state in states:
            for rollout in state["rollouts"].values():
                del rollout["elapsed_s"]
        assert all(state == states[0] for state in states)

    def test_the_state_is_json(self) -> None:
        state = graph_of(ScriptedPolicy(ALIKE)).invoke(PROMPT)
        assert json.loads(json.dumps(state)) == state

    @pytest.mark.parametrize("version", ["v1", "v2"])
    def test_a_result_is_read_from_either_version(self, version: Any) -> None:
        output = graph_of(ScriptedPolicy(ALIKE)).invoke(PROMPT, version=version)
        assert GroupResult.from_state(output).cut_at == 3

    @pytest.mark.parametrize("other", [{}, {"prompt": "q"}, None, 3])
    def test_something_else_is_no_result(self, other: Any) -> None:
        with pytest.raises(ConfigError, match="not the state of a group"):
            GroupResult.from_state(other)

    def test_progress_is_streamed(self) -> None:
        events = list(graph_of(ScriptedPolicy(ALIKE), SURVIVE).stream(PROMPT, stream_mode="custom"))
        gates = [event for event in events if event["type"] == "gate"]
        assert [(e["step"], e["live"], e["distance"]) for e in gates] == [
            (1, G, None),
            (2, G, None),
            (3, 1, 0.0),
            (4, 1, None),
            (5, 1, None),
            (6, 1, None),
            (7, 0, None),
        ]
        assert sum(event["type"] == "step" for event in events) == G * 3 + 4
        assert events[-1] | {"type": "end", "answer": "yes", "cut_at": 3} == events[-1]

    def test_the_callers_input_stays_untouched(self) -> None:
        class Meddling(World):
            def __init__(self, task: Task, rollout: int) -> None:
                super().__init__(task, rollout)
                task.metadata["place"]["visits"] = rollout  # type: ignore[index]

        given = {**PROMPT, "metadata": {"place": {"name": "desk"}}}
        kept = copy.deepcopy(given)
        state = graph_of(ScriptedPolicy(ALIKE), environment=Meddling).invoke(given)
        assert given == kept
        assert state["metadata"] == kept["metadata"]

    def test_no_superstep_changes_what_an_earlier_one_gave(self) -> None:
        parts, copies = [], []
        for part in graph_of(ScriptedPolicy(ALIKE), SURVIVE).stream(PROMPT, stream_mode="values"):
            parts.append(part)
            copies.append(copy.deepcopy(part))
        assert parts == copies

    def test_each_rollout_keeps_its_history(self) -> None:
        state = graph_of(ScriptedPolicy(UNLIKE), config=replace(ENFORCE, max_steps=3)).invoke(PROMPT)
        for key, rollout in state["rollouts"].items():
            assert [m["role"] for m in rollout["messages"]] == ["system", "user", *["assistant", "user"] * 3]
            assert rollout["messages"][1]["content"] == PROMPT["prompt"]
            assert str(rollout["index"]) == key

    def test_more_than_ten_rollouts_stay_in_order(self) -> None:
        state = graph_of(ScriptedPolicy(ALIKE)).invoke(PROMPT, context={"group_size": 12})
        assert list(state["rollouts"]) == [str(index) for index in range(12)]

    def test_tool_calls(self) -> None:
        call = Reply(tool_calls=(ToolCall("open", '{"b": 1, "a": 2}'), ToolCall("look", "{}")))
        policy = ScriptedPolicy(ScriptedBrain(lambda request, choice, seed: call))
        result = run(policy, config=replace(ENFORCE, max_steps=4))
        assert result.cut_at == 3
        assert result.rollouts[0].actions == ('look({})+open({"a":2,"b":1})',) * 3

    async def test_it_works_as_a_node_of_another_graph(self) -> None:
        outer = StateGraph(Outer)
        outer.add_node("group", graph_of(ScriptedPolicy(ALIKE)))
        outer.add_edge(START, "group")
        outer.add_edge("group", END)
        compiled = outer.compile()
        given: Outer = {"prompt": "Where is the mug?", "mood": "calm"}
        assert compiled.invoke(given)["status"] == "cut"
        assert (await compiled.ainvoke(given))["status"] == "cut"


class TestContext:
    def test_it_changes_what_the_graph_was_built_with(self) -> None:
        policy = ScriptedPolicy(ALIKE)
        graph = build_graph(policy)
        context = GroupContext(group_size=4, start_step=2, mode="enforce", outcome="survivor", max_steps=5)
        with pytest.warns(UncertifiedGateWarning):
            state = graph.invoke(PROMPT, context=context)
        result = GroupResult.from_state(state)
        assert (result.group.size, result.cut_at, len(policy.requests)) == (4, 2, 4 * 2 + 3)
        assert result.rollouts[result.survivor or 0].status is RolloutStatus.TRUNCATED

    @pytest.mark.parametrize(
        ("context", "message"),
        [
            ({"Tau": 0.1}, "context: unknown setting Tau; known are group_size"),
            ({"tau": 2}, "gate.tau must be a number in"),
            ({"group_size": 1}, "run.group_size must be at least 2"),
            ("enforce", "context must be a dict or a GroupContext, not str"),
        ],
    )
    def test_a_wrong_one_is_named(self, context: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            build_graph(ScriptedPolicy(ALIKE)).invoke(PROMPT, context=context)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({}, "prompt must be a text that is not empty, not None"),
            ({"prompt": " "}, "prompt must be a text"),
            (
                {"prompt": "q", "tau": 0.1, "group_size": 4},
                "group_size, tau is a setting; pass it as context",
            ),
            ({"prompt": "q", "group_id": 3}, "group_id must be a text"),
            ({"prompt": "q", "metadata": {"at": object()}}, "metadata must be plain JSON-able data"),
            ("q", r'input must be a dict such as \{"prompt": "..."\}, not str'),
        ],
    )
    async def test_a_wrong_input_is_named(self, given: Any, message: str) -> None:
        graph = build_graph(ScriptedPolicy(ALIKE))
        with pytest.raises(ConfigError, match=message):
            await graph.ainvoke(given)
        with pytest.raises(ConfigError, match=message):
            graph.invoke(given)

    def test_a_hold_that_supersteps_cannot_do_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="run.hold must be all in a graph"):
            build_graph(config=RunConfig(hold="followers"))

    def test_group_ids_are_made_up_if_not_given(self) -> None:
        graph = build_graph(ScriptedPolicy(ALIKE))
        first, second = (graph.invoke({"prompt": "q"}) for _ in range(2))
        assert first["group_id"] != second["group_id"]
        assert first["task_id"] == first["group_id"]


class TestFailures:
    def test_a_failed_rollout_is_data_and_the_group_goes_on(self) -> None:
        script: list[list[Line]] = [["go", "look", "go", "answer(desk)"] for _ in range(4)]
        script[1][1] = PolicyError("the server is gone", "connection")
        script[2][2] = "break"
        script[3] = ["endless"]
        result = run(
            Scripted(script), SURVIVE, replace(ENFORCE, group_size=4, max_steps=6), environment=World
        )
        assert statuses(result) == ["finished", "failed", "failed", "truncated"]
        assert [r.failure.kind if r.failure else None for r in result.rollouts] == [
            None,
            "connection",
            "environment",
            None,
        ]
        assert (result.status, result.failure) == ("finished", None)
        assert result.decisions[0].facts is not None
        assert result.decisions[0].facts.members == (0, 3)

    def test_a_group_that_failed_altogether_says_why(self) -> None:
        result = run(Scripted([[PolicyError("no such host", "connection")]] * G))
        assert result.status == "failed"
        assert result.failure is not None
        assert (result.failure.kind, result.failure.message) == ("connection", "no such host")
        assert result.trainable

    def test_the_next_in_line_takes_over_from_a_survivor_that_breaks(self) -> None:
        first, second, *_ = survivor_order("g", 4)
        script: list[list[Line]] = [["go", "look", "go", "go", "answer(desk)"] for _ in range(4)]
        script[first][3] = RuntimeError("out of luck")
        result = run(Scripted(script), SURVIVE, replace(ENFORCE, group_size=4), environment=World)
        assert (result.cut_at, result.survivor, result.answer) == (3, second, "desk")
        failure = result.rollouts[first].failure
        assert failure is not None
        assert failure.message == "RuntimeError: out of luck"

    def test_a_message_that_no_checkpoint_could_hold_fails_its_rollout(self) -> None:
        class Odd(Scripted):
            async def complete(self, messages: Sequence[Message], info: RequestInfo) -> Completion:
                return Completion({"role": "assistant", "content": "go", "raw": object()})

        result = run(Odd([]), config=replace(ENFORCE, group_size=2))
        assert result.failure is not None
        assert "a completion's message must be plain JSON-able data" in result.failure.message

    def test_half_a_character_is_replaced(self) -> None:
        graph = graph_of(Scripted([["\ud83d go"] * 3] * 2), config=replace(ENFORCE, group_size=2))
        state = graph.invoke(PROMPT)
        assert state["rollouts"]["0"]["messages"][2]["content"] == "\ufffd go"
        assert state["verdict"]["cut_at"] == 3

    def test_unknown_usage_stays_unknown(self) -> None:
        class Silent(Scripted):
            async def complete(self, messages: Sequence[Message], info: RequestInfo) -> Completion:
                said = await super().complete(messages, info)
                return replace(said, usage=Usage())

        result = run(Silent([["go"] * 3] * 2), config=replace(ENFORCE, group_size=2))
        assert (result.ledger.completion, result.ledger.unknown_requests) == (0, 6)

    def test_a_rollout_that_takes_too_long_fails(self) -> None:
        class Slow(Scripted):
            async def complete(self, messages: Sequence[Message], info: RequestInfo) -> Completion:
                if info.rollout == 1 and info.step == 2:
                    info.meter.started, info.meter.completion = True, 5
                    await asyncio.sleep(30)
                return await super().complete(messages, info)

        result = run(Slow([["go"] * 3] * 3), config=replace(ENFORCE, group_size=3, rollout_timeout_s=2.0))
        assert statuses(result) == ["cut", "failed", "cut"]
        assert result.rollouts[1].failure is not None
        assert result.rollouts[1].failure.kind == "timeout"
        assert result.ledgers[1].completion == 1 + 5

    def test_work_that_cancels_itself_is_a_failure(self) -> None:
        class Quitting(Scripted):
            async def complete(self, messages: Sequence[Message], info: RequestInfo) -> Completion:
                raise asyncio.CancelledError

        result = run(Quitting([]), config=replace(ENFORCE, group_size=2))
        assert result.failure is not None
        assert result.failure.message == "the work was cancelled from within"

    def test_a_recorder_that_breaks_breaks_the_run(self, tmp_path: Any) -> None:
        recorder = Recorder(tmp_path / "t.jsonl")
        recorder.close()
        with pytest.raises(TraceError, match="the recorder is closed"):
            graph_of(ScriptedPolicy(ALIKE), recorder=recorder, environment=World).invoke(PROMPT)

    async def test_a_cancelled_run_closes_every_world(self) -> None:
        policy = ScriptedPolicy(ALIKE, token_delay_s=30)
        task = asyncio.create_task(graph_of(policy, environment=World).ainvoke(PROMPT))
        while policy.in_flight < G:
            await asyncio.sleep(0.001)
        assert World.open == G
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (World.open, len(policy.cancelled)) == (0, G)

    def test_a_stream_that_is_left_stops_its_requests(self) -> None:
        class Stuck(Scripted):
            cancelled = 0

            async def complete(self, messages: Sequence[Message], info: RequestInfo) -> Completion:
                try:
                    await asyncio.sleep(30 if info.rollout else 0)
                except asyncio.CancelledError:
                    Stuck.cancelled += 1
                    raise
                return Completion({"role": "assistant", "content": "go"})

        stream = graph_of(Stuck([]), environment=World).stream(PROMPT, stream_mode="custom")
        assert next(stream)["type"] == "step"
        stream.close()
        assert (World.open, Stuck.cancelled) == (0, G - 1)

    def test_a_policy_made_for_a_run_is_closed_with_it(self) -> None:
        made: list[ScriptedPolicy] = []

        def make() -> ScriptedPolicy:
            made.append(ScriptedPolicy(ALIKE))
            return made[-1]

        graph = graph_of(make)
        for _ in range(2):
            graph.invoke(PROMPT)
        asyncio.run(graph.ainvoke(PROMPT))
        assert [policy.closed for policy in made] == [True] * 3
