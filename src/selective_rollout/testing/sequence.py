"""A reply as the tokens of one sequence: what is generated, what is shown, and why it ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Any, Literal, TypeAlias

from selective_rollout.testing.brains import Reply, ToolCall
from selective_rollout.testing.tokens import EOS, tokenize

TokenKind: TypeAlias = Literal["reasoning", "content", "call_name", "call_arguments", "eos"]


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token and the text that it shows."""

    kind: TokenKind
    text: str
    """Visible text; shorter than what was generated where a stop string begins, empty for the end token."""
    call: int = 0
    """0-based index of the tool call it belongs to."""


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """Everything one sequence will generate if nobody stops it."""

    tokens: tuple[Token, ...]
    finish_reason: str
    stop_reason: str | None = None
    """The stop string that ended it."""
    calls: tuple[ToolCall, ...] = ()


def plan_sequence(reply: Reply, *, max_tokens: int, stop: Sequence[str] = ()) -> SequencePlan:
    """Lay out a reply under the limits of a request.

    As in real servers, the end token and a stop string are generated and counted, but not shown.

    Args:
        reply: what the brain said.
        max_tokens: most tokens to generate; a reply cut by it ends with "length".
        stop: strings that end the content where they begin.
    """
    body = [
        *(Token("reasoning", text) for text in tokenize(reply.reasoning or "")),
        *(Token("content", text) for text in tokenize(reply.content or "")),
        *_call_tokens(reply.tool_calls),
    ]
    finish = "tool_calls" if reply.tool_calls and reply.finish_reason == "stop" else reply.finish_reason
    tokens, stopped_by = _apply_stop(body, stop)
    if stopped_by is not None:
        finish = "stop"
    elif finish != "length" or not tokens:
        tokens.append(Token("eos", ""))
    if len(tokens) > max_tokens:
        return SequencePlan(tuple(tokens[:max_tokens]), "length", None, reply.tool_calls)
    return SequencePlan(tuple(tokens), finish, stopped_by, reply.tool_calls)


def cut_inside_character(plan: SequencePlan, length: int) -> SequencePlan:
    """Cut a plan by length in the middle of a character, which a detokenizer shows as U+FFFD."""
    tokens = list(plan.tokens[: max(1, length)])
    tokens[-1] = replace(tokens[-1], text=tokens[-1].text[:-1] + "\ufffd")
    return SequencePlan(tuple(tokens), "length", None, plan.calls)


def generated_text(tokens: Iterable[Token]) -> list[str]:
    """Prompt tokens that generated tokens turn into when the reply is sent back."""
    return [EOS if token.kind == "eos" else token.text for token in tokens if token.kind != "reasoning"]


def shown_text(tokens: Iterable[Token], kind: TokenKind) -> str | None:
    """Visible text of one kind, or None if there is no token of that kind."""
    texts = [token.text for token in tokens if token.kind == kind]
    return "".join(texts) if texts else None


def shown_calls(tokens: Sequence[Token]) -> dict[int, dict[str, Any]]:
    """Tool calls as far as they were generated: index -> {"name", "arguments"}."""
    calls: dict[int, dict[str, Any]] = {}
    for token in tokens:
        if token.kind in ("call_name", "call_arguments"):
            call = calls.setdefault(token.call, {"name": None, "arguments": ""})
            if token.kind == "call_name":
                call["name"] = token.text
            else:
                call["arguments"] += token.text
    return calls


def shown_message(
    tokens: Sequence[Token], call_ids: Sequence[str], reasoning_field: str = "reasoning"
) -> dict[str, Any]:
    """The assistant message of generated tokens; `content` is null beside calls or bare reasoning."""
    calls, reasoning = shown_calls(tokens), shown_text(tokens, "reasoning")
    content = shown_text(tokens, "content")
    if content is None and not calls and reasoning is None:
        content = ""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": call_ids[index], "type": "function", "function": call} for index, call in calls.items()
        ]
    if reasoning is not None:
        message[reasoning_field] = reasoning
    return message


def _call_tokens(calls: Sequence[ToolCall]) -> Iterable[Token]:
    """Tokens of parallel calls, taken in turns.

    vLLM writes one call after the other; some gateways interleave them. The harder order makes every test
    prove that fragments are joined by index.
    """
    columns = [
        [
            Token("call_name", call.name, index),
            *(Token("call_arguments", text, index) for text in tokenize(call.arguments)),
        ]
        for index, call in enumerate(calls)
    ]
    return (token for token in chain.from_iterable(zip_longest(*columns)) if token is not None)


def _apply_stop(tokens: list[Token], stop: Sequence[str]) -> tuple[list[Token], str | None]:
    """Keep the tokens up to the one that completes a stop string; returns them and that string."""
    text = ""
    for position, token in enumerate(tokens, start=1):
        if token.kind != "content":
            continue
        before = len(text)
        text += token.text
        for string in stop:
            start = text.find(string, max(0, before - len(string) + 1))
            if start >= 0:
                return _clip(tokens[:position], start), string
    return tokens, None


def _clip(tokens: list[Token], length: int) -> list[Token]:
    """Hide all but the first `length` characters of the content."""
    clipped: list[Token] = []
    for token in tokens:
        if token.kind == "content":
            clipped.append(replace(token, text=token.text[:length]))
            length -= len(clipped[-1].text)
        else:
            clipped.append(token)
    return clipped
