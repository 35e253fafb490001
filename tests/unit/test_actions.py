"""Canonical symbols, options, scrubbing and answers."""

import pickle
from decimal import Decimal

import numpy as np
import pytest

from selective_rollout.actions import (
    ActionOptions,
    RawAction,
    RawCall,
    canonicalise,
    changes_world,
    default_answer,
    read_action,
    tool_names,
)
from selective_rollout.errors import ConfigError


class TestCallSpellings:
    @pytest.mark.parametrize(
        "written",
        [
            '{"tool": "search", "args": {"q": "red mug", "page": 1}}',
            '{"args":{"page":1,"q":"red mug"},"tool":"search"}',
            '{"name": "search", "arguments": "{\\"page\\": 1, \\"q\\": \\"red mug\\"}"}',
            '{"id": "c1", "type": "function",'
            ' "function": {"name": "search", "arguments": {"q": "red mug", "page": 1}}}',
            '{"action": "search", "action_input": {"q": "red mug", "page": 1}}',
            '```json\n{"tool": "search", "args": {"q": "red mug", "page": 1}}\n```',
            'search({"q": "red mug", "page": 1})',
            'search(page=1, q="red mug")',
            "search( q='red mug' , page = 1 )",
        ],
    )
    def test_one_call_has_one_symbol(self, written: str) -> None:
        assert canonicalise(written) == 'search({"page":1,"q":"red mug"})'

    @pytest.mark.parametrize(
        ("written", "symbol"),
        [
            ("look()", "look({})"),
            ("look(  )", "look({})"),
            ('{"function": {"name": "look"}}', "look({})"),
            ("click( 7 )", 'click({"0":7})'),
            ('open("a.txt", mode="r")', 'open({"0":"a.txt","mode":"r"})'),
            (
                "set(on=True, off=false, left=None, right=null)",
                'set({"left":null,"off":false,"on":true,"right":null})',
            ),
            ("say(text='it\\'s \"so\"')", 'say({"text":"it\'s \\"so\\""})'),
            ('[{"name":"b","arguments":{}},{"name":"a","arguments":{}}]', "a({})+b({})"),
            ('b({"x": 1})\na({})', 'a({})+b({"x":1})'),
            ("[b(x=1), a()]", 'a({})+b({"x":1})'),
            ('{"name":"b","arguments":{}}\n{"name": "a", "arguments": {}}', "a({})+b({})"),
            ('{"name":"b","arguments":{}}; {"name":"a","arguments":{}}', "a({})+b({})"),
            ('{"tool_calls": [{"id": "c1", "function": {"name": "a", "arguments": "{}"}}]}', "a({})"),
            ("open(7, mode='r',)", 'open({"0":7,"mode":"r"})'),
            ("pick(['a', \"b\"], (1, None), ('x'))", 'pick({"0":["a","b"],"1":[1,null],"2":"x"})'),
            ("set({'on': [True, {'k': 'v'}], 'b': ()})", 'set({"b":[],"on":[true,{"k":"v"}]})'),
        ],
    )
    def test_call_syntax(self, written: str, symbol: str) -> None:
        assert canonicalise(written) == symbol

    @pytest.mark.parametrize(
        "text",
        [
            "go to desk 1",
            "f(x)",
            "click(,7)",
            "f(a=1, a=2)",
            "respond(Sure, Mia.)",
            "f(1) g(2)",
            "f(['a' 'b'])",
            "f({'a', 'b'})",
            "f({1: 'a'})",
            "f(['a')",
            "[f(1) g(2)]",
            '{"name":"b","arguments":{}} then',
            "{not json",
            "a (1)",
        ],
    )
    def test_other_text_stays(self, text: str) -> None:
        assert canonicalise(text) == text

    def test_white_space_of_text_is_folded(self) -> None:
        assert canonicalise("  go to\n desk\t1 ") == "go to desk 1"
        assert canonicalise(" \n ") == ""

    def test_white_space_inside_arguments_is_content(self) -> None:
        assert canonicalise('run({"code": "if x:\\n  y"})') != canonicalise('run({"code": "if x:\\n    y"})')

    def test_objects_and_lists_that_are_no_calls(self) -> None:
        assert canonicalise('{ "path" : "a.txt" }') == '{"path":"a.txt"}'
        assert canonicalise('{"b": {"d": 1, "c": [ 2 ]}, "a": null}') == '{"a":null,"b":{"c":[2],"d":1}}'
        assert (
            canonicalise('{"tool": "a", "args": {}, "thought": "hm"}')
            == '{"args":{},"thought":"hm","tool":"a"}'
        )
        assert canonicalise("[1, 2]") == "[1,2]"
        assert canonicalise('{"type": "click", "name": "a", "args": {}}').startswith("{")

    def test_repeated_keys_mean_the_last_one(self) -> None:
        assert canonicalise('{"a": 1, "a": 2}') == '{"a":2}'

    def test_unicode_escapes_are_spelling(self) -> None:
        assert (
            canonicalise('say({"t": "caf\\u00e9"})')
            == canonicalise('say({"t": "café"})')
            == 'say({"t":"café"})'
        )

    def test_deep_nesting_and_huge_arguments_do_no_harm(self) -> None:
        deep = '{"a":' * 100_000 + "1" + "}" * 100_000
        assert canonicalise(deep) == deep
        assert canonicalise("f(" + "[" * 100_000 + ")").startswith("f([")
        assert canonicalise("f(" + "['a'," * 100_000 + ")").startswith("f(['a'")
        assert canonicalise(RawAction(calls=(RawCall("f", None, raw=deep),))) == f"invalid:f({deep})"
        big = "x" * 1_000_000
        assert canonicalise(f'write({{"text": "{big}"}})') == f'write({{"text":"{big}"}})'

    @pytest.mark.parametrize("depth", [50, 400, 700, 950])
    def test_any_depth_under_any_option(self, depth: int) -> None:
        options = ActionOptions(ignore_args={"*": ["x.y"]}, scrub_volatile=True, numeric_equal=True)
        nested = '{"a":[' * depth + "1" + "]}" * depth
        for action in (
            nested,
            "[" * depth + "]" * depth,
            f"f({nested})",
            RawAction((RawCall("f", None, nested),)),
        ):
            assert canonicalise(action, options).count("[") == depth

    def test_python_values_that_json_does_not_know(self) -> None:
        call = RawCall("f", {"s": {"b", "a"}, "t": (1, 2), "k": {2: "two", "one": 1}})
        assert (
            canonicalise(RawAction(calls=(call,))) == 'f({"k":{"2":"two","one":1},"s":["a","b"],"t":[1,2]})'
        )
        numbers = RawCall("f", {"a": np.int64(1), "b": np.float32(0.5), "c": Decimal("1.0")})
        assert canonicalise(RawAction(calls=(numbers,))) == 'f({"a":1,"b":0.5,"c":1.0})'


class TestNumbers:
    @pytest.mark.parametrize(
        ("left", "right"),
        [("1", "1.0"), ("1000", "1e3"), ("0", "-0.0"), ("12345678901234567890", "12345678901234567168.0")],
    )
    def test_equal_numbers_only_on_request(self, left: str, right: str) -> None:
        left, right = f'{{"n": {left}}}', f'{{"n": {right}}}'
        assert canonicalise(left) != canonicalise(right)
        options = ActionOptions(numeric_equal=True)
        same = canonicalise(left, options) == canonicalise(right, options)
        assert same is ("12345678901234567890" not in left)

    @pytest.mark.parametrize("other", ['"1"', "true", "1.5", "[1]", "NaN", "Infinity"])
    def test_what_is_not_one(self, other: str) -> None:
        options = ActionOptions(numeric_equal=True)
        assert canonicalise(f'{{"n": {other}}}', options) != canonicalise('{"n": 1}', options)

    def test_big_integers_are_exact(self) -> None:
        assert canonicalise('{"n": 9007199254740993}') == '{"n":9007199254740993}'

    def test_number_too_long_for_python_stays_text(self) -> None:
        text = '{"n":' + "9" * 5000 + "}"
        assert canonicalise(text) == text

    def test_one_spelling_of_a_float(self) -> None:
        assert canonicalise('{"n": 1.10}') == canonicalise('{"n": 1.1}')
        assert canonicalise('{"n": NaN}') == '{"n":NaN}'


class TestParallelCalls:
    calls = (RawCall("weather", {"c": "LA"}), RawCall("games", {"c": "LA"}))

    def test_order_is_ignored_unless_declared(self) -> None:
        forth, back = RawAction(self.calls), RawAction(self.calls[::-1])
        assert canonicalise(forth) == canonicalise(back) == 'games({"c":"LA"})+weather({"c":"LA"})'
        ordered = ActionOptions(ordered=True)
        assert canonicalise(forth, ordered) != canonicalise(back, ordered)

    def test_they_are_a_multiset(self) -> None:
        assert canonicalise(RawAction(self.calls[:1])) != canonicalise(RawAction(self.calls[:1] * 2))

    def test_volatile_arguments_do_not_decide_the_order(self) -> None:
        one, two = "3f0c2a9e-7b1d-4c55-9a10-1d2e3f405162", "b81d77aa-0c9e-4f0b-8f66-aa55bb66cc77"
        options = ActionOptions(scrub_volatile=True)
        forth = f'f({{"a":"{one}","b":1}})+f({{"a":"{two}","b":2}})'
        back = f'f({{"a":"{two}","b":1}})+f({{"a":"{one}","b":2}})'
        assert canonicalise(forth, options) == canonicalise(back, options)


class TestInvalidCalls:
    def test_broken_arguments_are_an_action_of_their_own(self) -> None:
        broken = RawAction(calls=(RawCall("pay", None, raw='{"id":  4'),))
        assert canonicalise(broken) == 'invalid:pay({"id": 4)'
        assert canonicalise(broken, ActionOptions(name_only=True)) == "invalid:pay"
        assert tool_names(broken) == ("pay",)

    def test_json_that_is_no_object_is_spelled_one_way(self) -> None:
        listed, as_floats = (
            RawAction(calls=(RawCall("pay", None, raw=raw),)) for raw in ("[1, 2]", "[1.0,2]")
        )
        assert canonicalise(listed) == "invalid:pay([1,2])"
        assert canonicalise(as_floats) != canonicalise(listed)
        equal = ActionOptions(numeric_equal=True)
        assert canonicalise(as_floats, equal) == canonicalise(listed, equal)

    def test_a_recorded_invalid_call_is_read_again(self) -> None:
        symbol = 'a({"q":"x  y"})+invalid:pay({bad)'
        assert canonicalise(symbol) == symbol
        assert canonicalise(symbol, ActionOptions(name_only=True)) == "a+invalid:pay"

    def test_what_is_broken_never_reads_as_a_further_call(self) -> None:
        symbol = canonicalise(RawAction(calls=(RawCall("pay", None, raw="{4)+look("),)))
        assert symbol == "invalid:pay({4) +look()"
        assert canonicalise(symbol) == symbol
        assert canonicalise(symbol, ActionOptions(name_only=True)) == "invalid:pay"

    def test_unsafe_and_missing_names(self) -> None:
        assert canonicalise(RawAction(calls=(RawCall("my (tool)", {}),))) == "my_tool_({})"
        assert canonicalise(RawAction(calls=(RawCall("", {}),))) == "?({})"


class TestIgnoredArguments:
    def test_per_tool(self) -> None:
        options = ActionOptions(ignore_args={"web": ["q"]})
        assert canonicalise('web(q="hotels oslo", k=5)', options) == 'web({"k":5})'
        assert canonicalise('other(q="hotels oslo", k=5)', options) == 'other({"k":5,"q":"hotels oslo"})'

    def test_dotted_paths_reach_into_objects_and_lists(self) -> None:
        options = ActionOptions(ignore_args={"book": ["flights.date", "user.name"]})
        call = (
            'book({"flights": [{"date": 1, "no": 2}, {"date": 3, "no": 4}], "user": {"name": "M", "id": 5}})'
        )
        assert canonicalise(call, options) == 'book({"flights":[{"no":2},{"no":4}],"user":{"id":5}})'

    def test_a_key_with_a_dot_is_found_as_it_is(self) -> None:
        options = ActionOptions(ignore_args={"f": ["a.b"]})
        assert canonicalise('f({"a.b": 1, "a": {"b": 2}})', options) == 'f({"a":{"b":2}})'

    def test_missing_paths_do_no_harm(self) -> None:
        options = ActionOptions(ignore_args={"f": ["a.b.c", "x"]})
        assert canonicalise('f({"a": {"b": 1}})', options) == 'f({"a":{"b":1}})'

    def test_positional_and_all_arguments(self) -> None:
        assert (
            canonicalise('search("red mug", 5)', ActionOptions(ignore_args={"search": ["0"]}))
            == 'search({"1":5})'
        )
        everything = ActionOptions(ignore_args={"respond": ["*"]})
        assert canonicalise('respond({"text": "hi"})', everything) == "respond({})"
        assert canonicalise("respond(Thank you, Mia.)", everything) == "respond({})"

    def test_every_tool_and_the_top_of_json_actions(self) -> None:
        options = ActionOptions(ignore_args={"*": ["thought"], "web": ["q"]})
        action = '{"thought": "hm", "tool": "web", "args": {"q": "x", "k": 5, "thought": "hm"}}'
        assert canonicalise(action, options) == 'web({"k":5})'
        assert tool_names(action, options) == ("web",)
        assert canonicalise('{"thought": "hm", "path": "a"}', options) == '{"path":"a"}'
        all_of_all = ActionOptions(ignore_args={"*": ["*"]})
        assert canonicalise('{"tool": "web", "args": {"q": "x"}}', all_of_all) == "web({})"


class TestNamesAndEffects:
    @pytest.mark.parametrize(
        ("action", "symbol"),
        [
            ('web({"q": 1})', "web"),
            ("b()+a()", "a+b"),
            ("go to desk 1", "go"),
            ("respond(Thank you, Mia.)", "respond"),
            ("search[red mug]", "search"),
            ('{"name":"web","arguments":{}} then', "web"),
            ('{"path": "a"}', '{"path":"a"}'),
            ("", ""),
        ],
    )
    def test_name_only(self, action: str, symbol: str) -> None:
        assert canonicalise(action, ActionOptions(name_only=True)) == symbol

    def test_tool_names(self) -> None:
        assert tool_names("b()+a()") == ("b", "a")
        assert tool_names("take mug from desk") == ("take",)
        assert tool_names("") == ()
        assert tool_names('{"path": "a"}') == ()

    def test_effects_are_unknown_until_declared(self) -> None:
        assert changes_world("pay()", ActionOptions()) is None

    def test_effects_by_name(self) -> None:
        options = ActionOptions(effects=["pay", "take"])
        assert changes_world('look()+pay({"id": 4})', options) is True
        assert changes_world("take mug from desk", options) is True
        assert changes_world("look()", options) is False

    def test_effects_by_predicate(self) -> None:
        options = ActionOptions(
            effects=lambda action: any((call.args or {}).get("write") for call in action.calls)
        )
        assert changes_world(RawAction(calls=(RawCall("db", {"write": True}),)), options) is True
        assert changes_world("db(write=True)", options) is False  # text is handed over as text


class TestScrubbing:
    options = ActionOptions(scrub_volatile=True)

    @pytest.mark.parametrize(
        ("text", "scrubbed"),
        [
            ("get 3F0C2A9E-7b1d-4c55-9a10-1d2e3f405162", "get <uuid>"),
            ("at 2026-03-01T09:00:01Z", "at <time>"),
            ("at 2026-03-01 09:00:01.123+02:00 sharp", "at <time> sharp"),
            ("at 2026-03-01 09:00:01 +0200", "at <time>"),
            ("at 2026/03/01 09:00:01", "at <time>"),
            ("at 20260301T090001Z", "at <time>"),
            ("at Sun, 01 Mar 2026 09:00:01 GMT", "at <time>"),
            ("[01/Mar/2026:09:00:01 +0000]", "[<time>]"),
            ("Sun Mar 1 09:00:01 UTC 2026", "<time>"),
            ("at 1772355601.1234", "at <time>"),
            ("show <Foo object at 0x7f3a2b1c4d50>", "show <Foo object at <addr>>"),
            ("commit 9fceb02d0ae598e95dc970b74767f19372d61af8", "commit <hex>"),
            ("cat /tmp/tmpab12cd3_/out.txt", "cat /tmp/<tmp>/out.txt"),
            ("cat /tmp/tmp.Ab12Cd34Ef", "cat /tmp/<tmp>"),
        ],
    )
    def test_volatile_parts(self, text: str, scrubbed: str) -> None:
        assert canonicalise(text, self.options) == scrubbed
        assert canonicalise(scrubbed, self.options) == scrubbed
        assert canonicalise(text) == text

    @pytest.mark.parametrize(
        "text",
        [
            "order 1008292230",
            "isbn 4006381333931",
            "card 4111111111111111",
            "pay 1234567890.25",
            "fly on 2024-05-20",
            "meet 2024-05-20 09:30",
            "meet 20 May 2024 at 09:30",
            "part 20240520T09",
            "release 20240520",
            "call 555-123-4567",
            "color deadbeef facade 0xFF00FF",
            "git show 9fceb02",
            "cat /tmp/tmp_results /tmp/report.txt tmp/template",
            "cat /tmp/tmp.properties",
            "effaceddecadedfaced",
            "version 2.10.3",
        ],
    )
    def test_ordinary_words_and_numbers_stay(self, text: str) -> None:
        assert canonicalise(text, self.options) == text

    def test_values_inside_arguments(self) -> None:
        call = 'run({"at": 1772355601.1234, "log": "x\\n2026-03-01T09:00:01Z", "n": [1772355601, 2.5]})'
        expected = 'run({"at":"<time>","log":"x\\n<time>","n":[1772355601,2.5]})'
        assert canonicalise(call, self.options) == expected

    def test_broken_arguments(self) -> None:
        broken = RawAction(calls=(RawCall("f", None, raw="{at 2026-03-01T09:00:01Z"),))
        assert canonicalise(broken, self.options) == "invalid:f({at <time>)"


class TestOptions:
    @pytest.mark.parametrize(
        ("values", "named"),
        [
            ({"ignore_args": {"web": "q"}}, "ignore_args"),
            ({"ignore_args": {"web": [""]}}, "ignore_args"),
            ({"ignore_args": ["web"]}, "ignore_args"),
            ({"numeric_equal": 1}, "numeric_equal"),
            ({"name_only": "yes"}, "name_only"),
            ({"pattern": "("}, "pattern"),
            ({"pattern": "no group"}, "pattern"),
            ({"pattern": "(two) (groups)"}, "pattern"),
            ({"effects": "pay"}, "effects"),
            ({"effects": 5}, "effects"),
            ({"effects": [""]}, "effects"),
            ({"extract": "str.strip"}, "extract"),
            ({"extract": str.strip, "pattern": "(a)"}, "pattern"),
        ],
    )
    def test_errors_name_the_option(self, values: dict[str, object], named: str) -> None:
        with pytest.raises(ConfigError, match=named):
            ActionOptions(**values)  # type: ignore[arg-type]

    def test_round_trip(self) -> None:
        options = ActionOptions(
            ignore_args={"web": ("q",)}, scrub_volatile=True, pattern="do (.*)", effects={"pay", "book"}
        )
        plain = options.to_dict()
        assert plain["effects"] == ["book", "pay"]
        assert ActionOptions.from_dict(plain) == options
        assert ActionOptions.from_dict(ActionOptions().to_dict()) == ActionOptions()
        assert "pattern" not in ActionOptions().to_dict()
        assert pickle.loads(pickle.dumps(options)) == options
        assert hash(options) == hash(ActionOptions.from_dict(plain))

    def test_unknown_keys_are_named(self) -> None:
        with pytest.raises(ConfigError, match=r"ignore_arg, xtract \(known: ignore_args"):
            ActionOptions.from_dict({"ignore_arg": {}, "xtract": 1})

    def test_functions_do_not_go_into_files(self) -> None:
        with pytest.raises(ConfigError, match="extract"):
            ActionOptions(extract=str.strip).to_dict()
        with pytest.raises(ConfigError, match="effects"):
            ActionOptions(effects=bool).to_dict()
        with pytest.raises(ConfigError, match="extract"):
            ActionOptions.from_dict({"extract": "x"})


class TestAnswers:
    @pytest.mark.parametrize(
        ("text", "answer"),
        [
            ("42", "42"),
            ("  The   Answer\n", "the answer"),
            ("<think>13?</think> 42.", "42"),
            ("Thought: done\nFinal Answer: **Paris.**", "paris"),
            ("**Final Answer:** Paris", "paris"),
            ("Final answer: 1. No, wrong. Final answer: 2", "2"),
            ("<answer> 42 </answer>", "42"),
            ("answer(42)", "42"),
            ("Finish[Richard Nixon]", "richard nixon"),
            ("answer(It is \\(\\boxed{\\frac{1}{2}}\\).)", "\\frac{1}{2}"),
            ('final_answer(answer="42")', "42"),
            ('final_answer({"answer": 42})', "42"),
            ('answer(unit="km", value=42)', 'unit="km", value=42'),
            ("**Final Answer: Paris**", "paris"),
            ("**Final Answer: Paris.**", "paris"),
            ("*Paris*", "paris"),
            ("_Paris_", "paris"),
            ("snake_case_", "snake_case_"),
            ("\u201cParis.\u201d", "paris"),
            ("\u2018Paris\u2019", "paris"),
            ("\\[42\\]", "42"),
            ("$$42$$", "42"),
            ("Cafe\u0301", "caf\u00e9"),
            ("x\u00b2", "x\u00b2"),
            ("\\boxed{unclosed", "\\boxed{unclosed"),
            ("$x = 2$", "x = 2"),
            ("'a' and 'b'", "'a' and 'b'"),
            ("1,000", "1,000"),
            ("3.5", "3.5"),
            ("42 km", "42 km"),
        ],
    )
    def test_default_answer(self, text: str, answer: str) -> None:
        assert default_answer(text) == answer

    @pytest.mark.parametrize("text", [None, "", "  ", "<think>never ends", "..."])
    def test_no_answer(self, text: str | None) -> None:
        assert default_answer(text) is None


def test_what_an_environment_gets_is_faithful() -> None:
    call = {"function": {"name": "look", "arguments": '{ "at":  "desk" }'}}
    action = read_action({"role": "assistant", "content": None, "tool_calls": [call]})
    assert str(action) == 'look({ "at":  "desk" })'
    assert str(RawAction(calls=(RawCall("a", {"x": "é"}), RawCall("b", {})))) == 'a({"x": "é"})\nb({})'
    assert str(RawAction(text="go  north")) == "go  north"
    assert str(RawAction()) == ""
