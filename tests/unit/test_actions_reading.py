"""Reading actions out of messages of every make."""

from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from openai.types.chat import ChatCompletion, ChatCompletionMessage

from selective_rollout.actions import ActionOptions, RawAction, from_message, from_messages, read_action


def assistant(
    *calls: tuple[str, Any], ids: tuple[str | None, ...] = (), content: Any = None
) -> dict[str, Any]:
    """An assistant message in OpenAI's format."""
    listed = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for (name, arguments), call_id in zip(calls, ids or ("c1",) * len(calls), strict=True)
    ]
    return {"role": "assistant", "content": content, **({"tool_calls": listed} if listed else {})}


class TestChatMessages:
    @pytest.mark.parametrize("arguments", [None, "", "  ", "{}", "null", {}])
    def test_no_arguments(self, arguments: Any) -> None:
        assert from_message(assistant(("look", arguments))) == "look({})"

    @pytest.mark.parametrize(
        ("arguments", "symbol"),
        [
            ('{"id": 4', 'invalid:pay({"id": 4)'),
            ("[1, 2]", "invalid:pay([1,2])"),
            ([1, 2], "invalid:pay([1,2])"),
            ("7", "invalid:pay(7)"),
            ("four", "invalid:pay(four)"),
        ],
    )
    def test_arguments_that_are_no_object(self, arguments: Any, symbol: str) -> None:
        assert from_message(assistant(("pay", arguments))) == symbol

    def test_arguments_nested_beyond_reason(self) -> None:
        args: dict[str, Any] = {}
        for _ in range(2000):
            args = {"a": args}
        options = ActionOptions(numeric_equal=True, scrub_volatile=True)
        assert from_message(assistant(("f", args)), options) == "invalid:f(more than 100 levels)"

    def test_control_characters_inside_argument_strings_are_read(self) -> None:
        assert from_message(assistant(("run", '{"code": "a\nb"}'))) == 'run({"code":"a\\nb"})'

    def test_calls_win_over_narration(self) -> None:
        assert from_message(assistant(("look", "{}"), content="Let me look.")) == "look({})"

    def test_legacy_function_call(self) -> None:
        message = {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "look", "arguments": '{"at": 1}'},
        }
        assert from_message(message) == 'look({"at":1})'

    def test_custom_tool(self) -> None:
        message = {
            "role": "assistant",
            "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "sh", "input": "ls"}}],
        }
        assert from_message(message) == 'sh({"input":"ls"})'

    def test_refusals_are_text(self) -> None:
        assert from_message({"role": "assistant", "content": None, "refusal": "I cannot."}) == "I cannot."
        part = {"type": "refusal", "refusal": "I cannot."}
        assert from_message({"role": "assistant", "content": [part]}) == "I cannot."

    @pytest.mark.parametrize("content", [None, "", [], [{"type": "thinking", "thinking": "hm"}]])
    def test_nothing_said_is_the_empty_action(self, content: Any) -> None:
        assert from_message({"role": "assistant", "content": content}) == ""

    def test_content_lists(self) -> None:
        parts = [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "go "}, "north"]
        assert from_message({"role": "assistant", "content": parts}) == "go north"

    def test_calls_in_content_blocks(self) -> None:
        blocks = [
            {"type": "text", "text": "Looking."},
            {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "desk"}},
        ]
        assert from_message({"role": "assistant", "content": blocks}) == 'look({"at":"desk"})'

    def test_declared_calls_are_not_counted_again_from_blocks(self) -> None:
        blocks = [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}]
        assert from_message(assistant(("look", "{}"), content=blocks)) == "look({})"

    def test_tools_that_ran_on_the_server(self) -> None:
        openai = [{"type": "web_search_call", "id": "w1", "status": "completed", "action": {"query": "oslo"}}]
        assert (
            from_message({"role": "assistant", "content": openai})
            == 'web_search({"action":{"query":"oslo"}})'
        )
        anthropic = [
            {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "oslo"}},
            {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
            {"type": "text", "text": "Oslo is a city."},
        ]
        assert from_message({"role": "assistant", "content": anthropic}) == 'web_search({"query":"oslo"})'

    @pytest.mark.parametrize(
        "block",
        [
            {"type": "mcp_call", "id": "m1", "name": "roll", "arguments": '{"n": 2}', "server_label": "dice"},
            {"type": "mcp_tool_use", "id": "m2", "name": "roll", "input": {"n": 2}, "server_name": "dice"},
        ],
    )
    def test_tools_of_mcp_servers_go_by_their_own_names(self, block: dict[str, Any]) -> None:
        assert from_message({"role": "assistant", "content": [block]}) == 'roll({"n":2})'

    def test_server_tools_beside_own_tools(self) -> None:
        blocks = [{"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}]
        assert from_message(assistant(("look", "{}"), content=blocks)) == "look({})+web_search({})"

    def test_ids_of_a_servers_own_tool_are_dropped(self) -> None:
        def click(**ids: str) -> str:
            block = {
                "type": "computer_call",
                "status": "completed",
                "action": {"type": "click", "x": 1},
                **ids,
            }
            return from_message({"role": "assistant", "content": [block]})

        assert (
            click(id="a", call_id="b")
            == click(id="c", call_id="d")
            == ('computer({"action":{"type":"click","x":1}})')
        )

    @pytest.mark.parametrize(
        "entry",
        [
            {"type": "function", "name": "pay", "parameters": {"id": 4}},
            {"function": "pay", "args": {"id": 4}},
            {"tool": "pay", "tool_input": {"id": 4}},
            {"name": "pay", "input": '{"id":4}'},
            '{"name": "pay", "arguments": {"id": 4}}',
        ],
    )
    def test_calls_go_by_several_names(self, entry: Any) -> None:
        message = {"role": "assistant", "content": None, "tool_calls": [entry]}
        assert from_message(message) == 'pay({"id":4})'
        assert from_message({**message, "tool_calls": entry}) == 'pay({"id":4})'

    @pytest.mark.parametrize(("entry", "symbol"), [("pay", "pay"), (None, "None"), (4, "4")])
    def test_what_is_no_call_equals_no_other(self, entry: Any, symbol: str) -> None:
        assert from_message({"role": "assistant", "tool_calls": [entry]}) == f"invalid:?({symbol})"

    @pytest.mark.parametrize("calls", ["", "[]", "null", [], None])
    def test_no_calls_in_any_spelling(self, calls: Any) -> None:
        assert from_message({"role": "assistant", "content": "go north", "tool_calls": calls}) == "go north"

    def test_one_block_that_is_no_list(self) -> None:
        assert (
            from_message({"role": "assistant", "content": {"type": "text", "text": "go north"}}) == "go north"
        )

    def test_parts_of_google(self) -> None:
        call = {"functionCall": {"name": "look", "args": {"at": "desk"}}}
        parts = [{"text": "hm", "thought": True}, {"text": "Looking."}, call]
        assert from_message({"role": "model", "parts": parts}) == 'look({"at":"desk"})'
        assert from_message({"role": "model", "parts": parts[:2]}) == "Looking."
        part = SimpleNamespace(text=None, function_call=SimpleNamespace(name="look", args={}, id=None))
        assert from_message(SimpleNamespace(role="model", parts=[part])) == "look({})"

    def test_odd_types_and_ids_do_no_harm(self) -> None:
        odd = [{"type": ["x"]}, {"type": {"a": 1}, "text": "y"}, {"type": "text", "text": None}, 5, None]
        assert from_message({"role": "assistant", "content": odd}) == ""
        assert from_message('{"type": ["x"], "name": "a"}') == '{"name":"a","type":["x"]}'
        assert (
            from_message({"role": "assistant", "tool_calls": [{"id": {}, "name": "f", "args": {}}]})
            == "f({})"
        )

    @pytest.mark.parametrize("other", [None, 5, b"look", ["look"], {"choices": []}])
    def test_what_is_no_message(self, other: Any) -> None:
        with pytest.raises(TypeError, match="cannot read an action"):
            read_action(other)


class TestObjects:
    def test_sdk_message(self) -> None:
        message = ChatCompletionMessage.model_validate(assistant(("look", '{"at": "desk"}')))
        assert from_message(message) == 'look({"at":"desk"})'
        assert from_message(ChatCompletionMessage(role="assistant", content="go north")) == "go north"
        assert from_message(ChatCompletionMessage(role="assistant", refusal="No.")) == "No."

    def test_a_whole_response_is_refused_with_a_hint(self) -> None:
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x"}}
        response = ChatCompletion.model_validate(
            {"id": "r", "choices": [choice], "created": 0, "model": "m", "object": "chat.completion"}
        )
        with pytest.raises(TypeError, match=r"pass response\.choices\[0\]\.message"):
            read_action(response)

    def test_langchain_message(self) -> None:
        calls = [{"name": "look", "args": {"at": "desk"}, "id": "c1"}]
        assert from_message(AIMessage(content="", tool_calls=calls)) == 'look({"at":"desk"})'
        assert from_message(AIMessage(content="go north")) == "go north"
        invalid = [{"name": "pay", "args": "{bad", "id": "c2", "error": None}]
        assert from_message(AIMessage(content="", invalid_tool_calls=invalid)) == "invalid:pay({bad)"
        mixed = AIMessage(content="", tool_calls=calls, invalid_tool_calls=invalid)
        assert from_message(mixed) == 'invalid:pay({bad)+look({"at":"desk"})'

    def test_langchain_additional_kwargs(self) -> None:
        legacy = AIMessage(
            content="", additional_kwargs={"function_call": {"name": "look", "arguments": "{}"}}
        )
        assert from_message(legacy) == "look({})"
        assert from_message(AIMessage(content="", additional_kwargs={"refusal": "No."})) == "No."

    def test_langchain_blocks(self) -> None:
        blocks = [
            {"type": "reasoning", "reasoning": "hm"},
            {"type": "web_search_call", "id": "w", "status": "completed", "action": {"query": "oslo"}},
        ]
        assert from_message(AIMessage(content=blocks)) == 'web_search({"action":{"query":"oslo"}})'

    def test_any_object_with_the_fields(self) -> None:
        call = SimpleNamespace(id="c", function=SimpleNamespace(name="look", arguments="{}"))
        assert from_message(SimpleNamespace(content=None, tool_calls=[call])) == "look({})"
        block = SimpleNamespace(
            type="web_search_call", id="w", status="completed", query="oslo", results=None
        )
        assert from_message(SimpleNamespace(content=[block])) == 'web_search({"query":"oslo"})'


class TestText:
    @pytest.mark.parametrize(
        ("completion", "action"),
        [
            ("<think>a\nb</think>\ngo north", "go north"),
            ("<THINK>a</THINK>go <think>b</think>north", "go north"),
            ("the prompt held the tag</think> go north", "go north"),
            ("<think>a<think>b</think>c</think>go north", "go north"),
            ("go north <think>cut off", "go north"),
            ("<think>cut off", ""),
            ("<thinking>a</thinking>go north", "go north"),
        ],
    )
    def test_reasoning_is_stripped(self, completion: str, action: str) -> None:
        assert from_message(completion) == action

    @pytest.mark.parametrize(
        ("completion", "action"),
        [
            ("Thought: hm\nAction: go to desk 1", "go to desk 1"),
            (
                "Thought 1: hm\nAction 1: Search[red mug]\nObservation 1: ...\nAction 2: Finish[x]",
                "Search[red mug]",
            ),
            ("**Action:** go north", "go north"),
            ("Thought:\nhm\n\nAction:\ngo north\n", "go north"),
            ("Action:\n```bash\nls -la\n```", "ls -la"),
            ('Action:\n```json\n{"action": "search", "action_input": "mug"}\n```', 'search({"0":"mug"})'),
            ('Action:\n{\n  "tool": "search",\n  "args": {"q": 1}\n}', 'search({"q":1})'),
            ('Action: search\nAction Input: {"q": "red mug"}\nObservation: found', 'search({"q":"red mug"})'),
            ("Action: search\nAction Input: red mug", 'search({"0":"red mug"})'),
            ('Action: search\nAction Input: "red mug"', 'search({"0":"red mug"})'),
            ("Action: look\nAction Input:", "look({})"),
            ("Action: search\nAction Input: {bad", "invalid:search({bad)"),
            ('Action: search\nAction Input:\n```json\n{"q":\n 1}\n```', 'search({"q":1})'),
            ("My action was good.", "My action was good."),
        ],
    )
    def test_react(self, completion: str, action: str) -> None:
        assert from_message(completion) == action

    @pytest.mark.parametrize(
        ("completion", "action"),
        [
            ('hm\n<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>', 'look({"at":1})'),
            (
                '<tool_call>{"name":"b","arguments":{}}</tool_call><tool_call>{"name":"a","arguments":{}}</tool_call>',
                "a({})+b({})",
            ),
            ('<tool_call>{"name": "look", "argu', 'invalid:look({"name": "look", "argu)'),
            ("<tool_call>what</tool_call>", "invalid:tool_call(what)"),
            (
                '<tool_call>[{"name":"b","arguments":{}},{"name":"a","arguments":{}}]</tool_call>',
                "a({})+b({})",
            ),
            (
                "<tool_call>\n<function=look>\n<parameter=at>\na desk\n</parameter>\n"
                "<parameter=n>\n2\n</parameter>\n</function>\n</tool_call>",
                'look({"at":"a desk","n":2})',
            ),
            ("<tool_call>\n<function=look>\n</function>\n</tool_call>", "look({})"),
            ('hm <function=look>{"at": 1}</function>', 'look({"at":1})'),
            ("<function=look><parameter=at>de", "invalid:look(<parameter=at>de)"),
            ("<function=look>desk</function>", "invalid:look(desk)"),
            (
                "<tool_call>look\n<arg_key>at</arg_key>\n<arg_value>a desk</arg_value>\n</tool_call>",
                'look({"at":"a desk"})',
            ),
        ],
    )
    def test_tagged_calls_of_servers_without_a_tool_parser(self, completion: str, action: str) -> None:
        assert from_message(completion) == action

    def test_pattern(self) -> None:
        options = ActionOptions(pattern=r"(?s)```bash\n(.*?)\n```")
        assert from_message("Do:\n```bash\nls  -la\n```\nAction: x", options) == "ls -la"
        assert from_message("nothing to do", options) == ""
        assert from_message("a", ActionOptions(pattern="a|(b)")) == ""

    def test_pattern_does_not_touch_calls(self) -> None:
        assert from_message(assistant(("look", "{}")), ActionOptions(pattern="(x)")) == "look({})"

    def test_function(self) -> None:
        options = ActionOptions(extract=lambda text: text.rpartition(">")[2] if ">" in text else None)
        assert read_action("hm > go north ", options) == RawAction(text="go north")
        assert from_message("hm", options) == ""


class TestConversations:
    def test_only_assistant_messages_are_steps(self) -> None:
        messages = [
            {"role": "system", "content": "Act."},
            {"role": "user", "content": "room"},
            {"role": "assistant", "content": "go north"},
            {"role": "tool", "tool_call_id": "c1", "content": "hall"},
            {"role": "assistant", "content": ""},
            {"role": "user", "content": "hall"},
        ]
        assert from_messages(messages) == ["go north", ""]

    def test_langchain_conversation(self) -> None:
        call = {"name": "look", "args": {}, "id": "c1"}
        messages = [
            SystemMessage("Act."),
            HumanMessage("room"),
            AIMessage(content="", tool_calls=[call]),
            ToolMessage("hall", tool_call_id="c1"),
            AIMessage("done"),
        ]
        assert from_messages(messages) == ["look({})", "done"]

    @pytest.mark.parametrize("role", ["assistant", "model", "agent", "ai"])
    def test_the_agent_goes_by_several_names(self, role: str) -> None:
        assert from_messages([{"role": "env", "content": "room"}, {"role": role, "content": "go"}]) == ["go"]

    def test_items_of_one_response_are_one_step(self) -> None:
        def call(name: str, call_id: str) -> dict[str, Any]:
            return {"type": "function_call", "id": "x", "call_id": call_id, "name": name, "arguments": "{}"}

        text = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]}
        reply = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
        items = [
            {"role": "user", "content": "room"},
            {"type": "reasoning", "summary": []},
            call("b", "c1"),
            call("a", "c2"),
            reply,
            {"type": "custom_tool_call", "call_id": "c3", "name": "sh", "input": "ls"},
            {"type": "custom_tool_call_output", "call_id": "c3", "output": "ok"},
            text,
        ]
        assert from_messages(items) == ["a({})+b({})", 'sh({"input":"ls"})', "done"]
        assert from_messages([{**text, "content": "done"}]) == ["done"]
        assert from_messages([SimpleNamespace(**item) for item in items]) == from_messages(items)
        assert from_message(call("a", "c1")) == "a({})"

    def test_plain_completions(self) -> None:
        assert from_messages(["Action: a", "Action: a"]) == ["a", "a"]

    def test_a_retry_counts_once_even_after_a_reply(self) -> None:
        pay = assistant(("pay", '{"id": 4}'), ids=("c1",))
        again = assistant(("pay", '{"id":4}'), ids=("c1",))
        reply = {"role": "tool", "tool_call_id": "c1", "content": "ok"}
        assert from_messages([pay, reply, again, reply]) == ['pay({"id":4})']

    def test_same_id_with_other_arguments_is_a_new_action(self) -> None:
        first, second = (assistant(("pay", f'{{"id": {i}}}'), ids=("c1",)) for i in (4, 5))
        assert len(from_messages([first, second])) == 2

    def test_ids_that_a_server_reuses_prove_nothing(self) -> None:
        look, pay = (assistant((name, "{}"), ids=("call_0",)) for name in ("look", "pay"))
        assert from_messages([look, pay, look, look]) == ["look({})", "pay({})", "look({})", "look({})"]

    @pytest.mark.parametrize("call_id", [None, ""])
    def test_calls_without_ids_are_never_retries(self, call_id: str | None) -> None:
        look = assistant(("look", "{}"), ids=(call_id,))
        assert from_messages([look, look]) == ["look({})", "look({})"]

    def test_a_step_with_one_new_call_is_no_retry(self) -> None:
        one = assistant(("a", "{}"), ids=("c1",))
        two = assistant(("a", "{}"), ("b", "{}"), ids=("c1", "c2"))
        assert from_messages([one, two, two]) == ["a({})", "a({})+b({})"]

    def test_ignored_arguments_do_not_make_a_retry(self) -> None:
        options = ActionOptions(ignore_args={"pay": ["id"]})
        first, second = (assistant(("pay", f'{{"id": {i}}}'), ids=("c1",)) for i in (4, 5))
        assert from_messages([first, second], options) == ["pay({})", "pay({})"]


def test_the_calls_of_a_chunk_are_read_as_they_were_written() -> None:
    guess = {"name": "f", "args": {"x": 1}, "id": "1"}
    written = {"name": "f", "args": '{"x": 1, "y":', "id": "1", "index": 0}
    chunk = SimpleNamespace(type="AIMessageChunk", content="", tool_calls=[guess], tool_call_chunks=[written])
    assert from_message(chunk) == 'invalid:f({"x": 1, "y":)'
    assert from_message({"role": "assistant", "content": "", "tool_call_chunks": [written]}) == (
        'invalid:f({"x": 1, "y":)'
    )


def test_tools_of_the_server_are_read_in_the_spelling_that_providers_share() -> None:
    own = {"type": "web_search_call", "id": "s", "action": {"query": "mug"}}
    shared = {"type": "server_tool_call", "name": "web_search", "args": {"query": "mug"}, "id": "s"}
    blocks = [shared, {"type": "text", "text": "In the sink."}]
    assert from_message(SimpleNamespace(type="ai", content=[own], content_blocks=blocks)) == (
        'web_search({"query":"mug"})'
    )
    assert from_message(SimpleNamespace(type="ai", content="In the sink.", content_blocks=blocks)) == (
        'web_search({"query":"mug"})'
    )
