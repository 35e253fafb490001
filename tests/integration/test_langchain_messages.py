"""Actions and tokens out of LangChain messages, built by LangChain itself and by a real ChatOpenAI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("langchain", reason='needs pip install "selective-rollout[langchain]" langchain-openai')
pytest.importorskip(
    "langchain_openai", reason='needs pip install "selective-rollout[langchain]" langchain-openai'
)

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from selective_rollout.actions import ActionOptions, from_message, from_messages
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.langchain import (
    GroupGateMiddleware,
    UnknownUsageWarning,
    gated_group,
    usage_of,
)
from selective_rollout.integrations.langchain.messages import (
    is_interrupted,
    last_turn,
    refusals,
    reply_before,
)
from selective_rollout.testing import LoopbackServer, Reply, ScriptedBrain, ToolCall
from selective_rollout.types import Usage


def call(name: str, args: dict[str, Any], call_id: str = "1") -> dict[str, Any]:
    return {"name": name, "args": args, "id": call_id}


def broken(name: str, raw: str, call_id: str = "2") -> dict[str, Any]:
    return {"name": name, "args": raw, "id": call_id, "error": "no JSON"}


def chunk(raw: str, name: str | None = "f") -> AIMessageChunk:
    return AIMessageChunk("", tool_call_chunks=[{"name": name, "args": raw, "id": "1", "index": 0}])


SEARCH = {"type": "search", "query": "mug"}
ON_SERVER = 'web_search({"query":"mug","type":"search"})'
OPENAI = {"model_provider": "openai"}
TEXT = {"type": "text", "text": "In the sink."}

TABLE: list[tuple[str, AIMessage, str]] = [
    ("keys in any order", AIMessage("", tool_calls=[call("f", {"b": 1, "a": "é"})]), 'f({"a":"é","b":1})'),
    ("calls in any order", AIMessage("", tool_calls=[call("g", {}, "1"), call("f", {}, "2")]), "f({})+g({})"),
    ("text beside calls", AIMessage("Let me look.", tool_calls=[call("f", {})]), "f({})"),
    ("1 is not 1.0", AIMessage("", tool_calls=[call("f", {"x": 1.0})]), 'f({"x":1.0})'),
    ("not a number", AIMessage("", tool_calls=[call("f", {"x": float("nan")})]), 'f({"x":NaN})'),
    ("broken JSON", AIMessage("", invalid_tool_calls=[broken("f", '{"x": ')]), 'invalid:f({"x":)'),
    (
        "one sound, one broken",
        AIMessage("", tool_calls=[call("g", {})], invalid_tool_calls=[broken("f", "{")]),
        "g({})+invalid:f({)",
    ),
    ("text", AIMessage("In  the\nsink."), "In the sink."),
    ("no content", AIMessage(""), ""),
    (
        "list of text",
        AIMessage([{"type": "text", "text": "In the "}, {"type": "text", "text": "sink."}]),
        "In the sink.",
    ),
    ("reasoning block", AIMessage([{"type": "reasoning", "reasoning": "hm"}, TEXT]), "In the sink."),
    ("think tags", AIMessage("<think>hm</think>In the sink."), "In the sink."),
    (
        "server tool, standard block",
        AIMessage([{"type": "server_tool_call", "name": "web_search", "args": SEARCH, "id": "s"}, TEXT]),
        ON_SERVER,
    ),
    (
        "server tool, Anthropic",
        AIMessage(
            [{"type": "server_tool_use", "name": "web_search", "input": SEARCH, "id": "s"}, TEXT],
            response_metadata={"model_provider": "anthropic"},
        ),
        ON_SERVER,
    ),
    (
        "server tool, OpenAI responses",
        AIMessage(
            [{"type": "web_search_call", "id": "s", "status": "completed", "action": SEARCH}, TEXT],
            response_metadata=OPENAI,
        ),
        ON_SERVER,
    ),
    (
        "server tool, OpenAI responses of old",
        AIMessage(
            [TEXT],
            additional_kwargs={
                "tool_outputs": [
                    {"type": "web_search_call", "id": "s", "status": "completed", "action": SEARCH}
                ]
            },
            response_metadata=OPENAI,
        ),
        ON_SERVER,
    ),
    (
        "function_call of old",
        AIMessage("", additional_kwargs={"function_call": {"name": "f", "arguments": '{"b": 1, "a": 2}'}}),
        'f({"a":2,"b":1})',
    ),
    ("refusal", AIMessage("", additional_kwargs={"refusal": "I cannot."}), "I cannot."),
    ("unfinished chunk", chunk('{"x": 1, "y":'), 'invalid:f({"x": 1, "y":)'),
    ("chunk cut at a value", chunk('{"x": 1'), 'invalid:f({"x": 1)'),
    ("finished chunk", chunk('{"y": 2, "x": 1}'), 'f({"x":1,"y":2})'),
    ("chunks put together", chunk('{"x": ') + chunk("1}", None), 'f({"x":1})'),
]


@pytest.mark.parametrize(("message", "action"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_from_message(message: AIMessage, action: str) -> None:
    assert from_message(message) == action
    assert from_messages([HumanMessage("q"), message]) == [action]


def test_a_chunk_guesses_what_an_unfinished_call_means_and_is_not_believed() -> None:
    assert chunk('{"x": 1, "y":').tool_calls[0]["args"] == {"x": 1}  # the reason for the rule


def test_ids_do_not_count_and_order_counts_on_request() -> None:
    first = AIMessage("", tool_calls=[call("g", {}, "1"), call("f", {}, "2")])
    second = AIMessage("", tool_calls=[call("f", {}, "3"), call("g", {}, "4")])
    ordered = ActionOptions(ordered=True)
    assert from_message(first) == from_message(second)
    assert (from_message(first, ordered), from_message(second, ordered)) == ("g({})+f({})", "f({})+g({})")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=4), st.randoms(use_true_random=False))
def test_no_spelling_of_equal_arguments_makes_a_difference(args: dict[str, Any], random: Any) -> None:
    keys = list(args)
    random.shuffle(keys)
    spelled = json.dumps({key: args[key] for key in keys}, indent=2, ensure_ascii=True)
    parsed = AIMessage("", tool_calls=[call("f", args)])
    raw = AIMessage("", additional_kwargs={"function_call": {"name": "f", "arguments": spelled}})
    assert from_message(parsed) == from_message(chunk(spelled)) == from_message(raw)


def told(**usage: Any) -> AIMessage:
    return AIMessage("", usage_metadata={"input_tokens": 5, "output_tokens": 3, "total_tokens": 8, **usage})


def test_usage_that_nobody_told_is_unknown() -> None:
    assert usage_of(AIMessage("")) == Usage()
    assert usage_of(told()) == Usage(prompt=5, completion=3, source="server")
    detailed = told(input_token_details={"cache_read": 4}, output_token_details={"reasoning": 2})
    assert usage_of(detailed) == Usage(5, 4, 3, 2, "server")


def test_the_reply_to_a_step_is_the_tool_messages_before_the_next() -> None:
    answers = [
        ToolMessage("a mug", tool_call_id="1"),
        ToolMessage([{"type": "text", "text": "dark"}], tool_call_id="2", status="error"),
    ]
    messages: list[Any] = [
        HumanMessage("q"),
        AIMessage("", tool_calls=[call("f", {})]),
        *answers,
        AIMessage("done"),
    ]
    turn = last_turn(messages)
    assert turn is not None
    message, reply, waiting = turn
    assert (message.text, reply.text, reply.is_error, waiting) == ("done", "a mug\ndark", True, [])
    assert (reply_before(messages, 1).text, reply_before(messages, 1).is_error) == (None, None)
    assert last_turn([HumanMessage("q")]) is None


def test_every_call_without_an_answer_gets_one_and_no_other() -> None:
    asked = AIMessage(
        "",
        tool_calls=[call("f", {}, "1"), call("g", {}, "2")],
        invalid_tool_calls=[broken("h", "{", "3")],
    )
    made = refusals([asked, ToolMessage("ok", tool_call_id="1")])
    assert [(message.tool_call_id, message.name, message.status) for message in made] == [
        ("2", "g", "error"),
        ("3", "h", "error"),
    ]
    assert refusals([]) == refusals([AIMessage("done")]) == []


def test_a_run_that_waits_for_a_human_is_told_from_one_that_ended() -> None:
    assert is_interrupted({"messages": [], "__interrupt__": ["?"]})
    assert not is_interrupted({"messages": []})
    assert not is_interrupted("text")


@tool
def look(place: int) -> str:
    """Look at a place."""
    return f"nothing at {place}"


@pytest.fixture(scope="module")
def server() -> Iterator[LoopbackServer]:
    def say(request: dict[str, Any], choice: int, seed: int | None) -> Reply:
        steps = sum(message["role"] == "assistant" for message in request["messages"])
        words = str(request["messages"][0]["content"])
        if words == "list":
            return Reply(tool_calls=(ToolCall("look", "[1, 2]"),))
        if words == "broken":
            return Reply(tool_calls=(ToolCall("look", '{"place": '),))
        return Reply("In the sink.") if steps == 2 else Reply(tool_calls=(ToolCall("look", '{"place": 1}'),))

    with LoopbackServer(ScriptedBrain(say)) as running:
        yield running


def model_of(server: LoopbackServer, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model=server.model,
        base_url=server.base_url,
        api_key=server.api_key,
        max_retries=0,
        default_headers={"Connection": "close"},
        **options,
    )


def observed(
    server: LoopbackServer, words: str = "go", *, stream: bool = False, **options: Any
) -> GroupOutcome:
    """What a group of two sees of the agent."""
    agent = create_agent(model_of(server, **options), [look], middleware=[GroupGateMiddleware()])
    question: Any = {"messages": [HumanMessage(words)]}

    async def streamed() -> None:
        async for _ in agent.astream(question, stream_mode="messages"):
            pass

    async def main() -> GroupOutcome:
        async with gated_group(GateConfig(), 2, group_id="g") as group:
            for i in range(2):
                await group.run(i, streamed() if stream else agent.ainvoke(question))
        return group.outcome

    return asyncio.run(main())


def test_tokens_are_those_that_the_server_counted(server: LoopbackServer) -> None:
    before = server.counters.completion_tokens
    ledger = observed(server).ledger
    assert (ledger.requests, ledger.unknown_requests) == (6, 0)
    assert ledger.completion == server.counters.completion_tokens - before


def test_several_samples_of_one_request_are_counted_once(server: LoopbackServer) -> None:
    model = model_of(server, n=3)
    before = server.counters.completion_tokens
    samples = asyncio.run(model.agenerate([[HumanMessage("go")]])).generations[0]
    spent = server.counters.completion_tokens - before
    totals = [
        usage_of(sample.message).completion for sample in samples if isinstance(sample.message, AIMessage)
    ]
    assert totals == [spent] * 3  # the trap: each repeats the whole request
    before = server.counters.completion_tokens
    with pytest.warns(UnknownUsageWarning, match="n=3 choices"):
        ledger = observed(server, n=3).ledger
    assert ledger.requests == 6
    assert ledger.completion == server.counters.completion_tokens - before


def test_streaming_without_stream_usage_is_unknown_and_never_zero(server: LoopbackServer) -> None:
    with pytest.warns(UnknownUsageWarning, match="6 of 6 model replies"):
        unknown = observed(server, stream=True)
    assert (unknown.ledger.requests, unknown.ledger.unknown_requests) == (6, 6)
    assert all(step.usage == Usage() for rollout in unknown.group.rollouts for step in rollout.steps)
    before = server.counters.completion_tokens
    known = observed(server, stream=True, stream_usage=True)
    assert known.ledger.unknown_requests == 0
    assert known.ledger.completion == server.counters.completion_tokens - before
    actions = {rollout.actions for rollout in (*unknown.group.rollouts, *known.group.rollouts)}
    assert actions == {('look({"place":1})', 'look({"place":1})', "In the sink.")}


def test_broken_arguments_end_an_agent_with_an_action_of_their_own_and_no_answer(
    server: LoopbackServer,
) -> None:
    outcome = observed(server, "broken")
    assert [rollout.actions for rollout in outcome.group.rollouts] == [('invalid:look({"place":)',)] * 2
    assert [rollout.answer for rollout in outcome.group.rollouts] == [None, None]


def test_arguments_that_are_no_object_break_their_rollout_only(server: LoopbackServer) -> None:
    outcome = observed(server, "list")
    failures = [rollout.failure for rollout in outcome.group.rollouts]
    assert all(failure is not None and "ValidationError" in failure.message for failure in failures)
