from typing import Any

import pytest

from selective_rollout.testing.brains import EchoBrain
from selective_rollout.testing.options import ServerOptions
from selective_rollout.testing.requests import ApiError, GenerateRequest, read_body, read_generate_request

MESSAGES = [{"role": "user", "content": "hello there"}]
TOOLS = [{"type": "function", "function": {"name": "open"}}]


def read(
    body: dict[str, Any], personality: str = "vllm", *, chat: bool = True, **options: Any
) -> GenerateRequest:
    settings = ServerOptions(EchoBrain(), personality, **options)  # type: ignore[arg-type]
    return read_generate_request({"messages": MESSAGES, **body}, settings, chat=chat)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"n": 4, "temperature": 0}, 400, "n must be 1 when using greedy sampling, got 4"),
        ({"temperature": 5}, 400, "temperature must be in"),
        ({"temperature": -1}, 400, "temperature must be in"),
        ({"temperature": "hot"}, 400, "temperature must be a number"),
        ({"max_tokens": 0}, 400, "max_tokens must be at least 1"),
        ({"max_tokens": 5000}, 400, "max_tokens=5000 cannot be greater than max_model_len=4096"),
        ({"max_completion_tokens": 5000}, 400, "cannot be greater"),
        ({"n": 0}, 400, "n must be at least 1"),
        ({"n": "two"}, 400, "n must be an integer"),
        ({"n": True}, 400, "n must be an integer"),
        ({"seed": 1.5}, 400, "seed must be an integer"),
        ({"messages": []}, 400, "messages must be a non-empty list"),
        ({"messages": "hello"}, 400, "messages must be a non-empty list"),
        ({"stop": [1]}, 400, "stop must be"),
        ({"stop": 7}, 400, "stop must be"),
        ({"stream_options": {"include_usage": True}}, 400, "Stream options"),
        ({"model": "other"}, 404, "The model `other` does not exist."),
        ({"messages": [{"role": "user", "content": "word " * 5000}]}, 400, "maximum context length"),
    ],
)
def test_vllm_refuses(body: dict[str, Any], status: int, message: str) -> None:
    with pytest.raises(ApiError, match=message.replace("`", ".")) as refused:
        read(body)
    assert refused.value.status == status


@pytest.mark.parametrize(
    ("body", "n", "max_tokens"),
    [
        ({"n": 4, "temperature": 0}, 4, None),
        ({"temperature": 5}, 1, None),
        ({"max_tokens": 0}, 1, 1),
        ({"max_tokens": 1_000_000}, 1, None),
        ({"max_tokens": -1}, 1, None),
        ({"model": "other"}, 1, None),
    ],
)
def test_llama_cpp_accepts(body: dict[str, Any], n: int, max_tokens: int | None) -> None:
    request = read(body, "llama.cpp")
    room = 4096 - len(request.prompt)
    assert (request.n, request.max_tokens) == (n, room if max_tokens is None else max_tokens)


def test_llama_cpp_refuses_more_choices_than_slots() -> None:
    with pytest.raises(ApiError, match="between 1 <= value <= 8, but got 9"):
        read({"n": 9}, "llama.cpp", slots=8)
    assert read({"n": 100}).n == 100


def test_llama_cpp_tells_the_sizes_of_a_prompt_that_is_too_long() -> None:
    with pytest.raises(ApiError) as refused:
        read({"messages": [{"role": "user", "content": "word " * 90}]}, "llama.cpp", max_model_len=64)
    assert refused.value.kind == "exceed_context_size_error"
    assert refused.value.extra == {"n_prompt_tokens": 94, "n_ctx": 64}


def test_some_servers_ignore_n() -> None:
    assert read({"n": 4}, "n_ignored").n == 1


def test_max_tokens_never_exceeds_the_room_left() -> None:
    request = read({"max_tokens": 64}, max_model_len=64)
    assert request.max_tokens == 64 - len(request.prompt)


def test_tool_choice_can_be_switched_off() -> None:
    assert read({"tools": TOOLS}).n == 1
    with pytest.raises(ApiError, match="enable-auto-tool-choice"):
        read({"tools": TOOLS}, auto_tool_choice=False)
    assert read({"tools": TOOLS, "tool_choice": "none"}, auto_tool_choice=False).n == 1
    assert read({"tools": TOOLS}, "llama.cpp", auto_tool_choice=False).n == 1


def test_text_completions_need_a_prompt_and_give_the_brain_messages() -> None:
    request = read({"prompt": "a b"}, chat=False)
    assert request.body["messages"] == [{"role": "user", "content": "a b"}]
    assert request.prompt == ["a", " b"]
    with pytest.raises(ApiError, match="prompt must be a non-empty string"):
        read({}, chat=False)


def test_stream_options_are_read_where_the_server_honours_them() -> None:
    body = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    assert (read(body).include_usage, read(body).continuous_usage) == (True, True)
    other = read(body, "llama.cpp")
    assert (other.include_usage, other.continuous_usage) == (True, False)


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"\xff"])
def test_a_body_must_be_a_json_object(raw: bytes) -> None:
    with pytest.raises(ApiError, match="request body") as refused:
        read_body(raw)
    assert refused.value.status == 400
