"""Assembling an answer, streamed or whole, into finished messages with their usage.

No message can be read out before the answer has ended, so half a tool call is never taken for an action. What
a single chunk adds to the generated text and its token ids is for `read_piece` to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from selective_rollout.errors import PolicyError
from selective_rollout.policy.base import Piece
from selective_rollout.policy.fragments import ChoiceParts, as_list, as_object, said
from selective_rollout.policy.usage import read_timings, response_usage
from selective_rollout.types import Usage


@dataclass(frozen=True, slots=True)
class Choice:
    """One finished choice of an answer."""

    message: dict[str, Any]
    """The assistant message; reasoning stays under the field name that the server used."""
    finish_reason: str | None
    chunks: int
    """Streamed chunks that carried anything generated: the client's token count."""


class Assembly:
    """Collects one answer, chunk by chunk or whole.

    Args:
        n: choices that were asked for.
    """

    def __init__(self, n: int = 1) -> None:
        self._n = n
        self._parts: dict[int, ChoiceParts] = {}
        self._opened = 0
        self._whole = False
        self._totals: list[object] = []
        self._running: dict[int, object] = {}
        self._timings: object = None
        self.response_id: str | None = None

    def add_chunk(self, chunk: object) -> int:
        """Take in one chunk of a stream.

        Returns:
            The number of choices it carried anything generated for: one token each on most servers.

        Raises:
            PolicyError: kind "protocol" if it is no chunk.
        """
        choices = self._open(chunk)
        return sum(self._add(position, choice, "delta") for position, choice in enumerate(choices))

    def add_response(self, response: object) -> None:
        """Take in a whole answer that was not streamed.

        Raises:
            PolicyError: kind "protocol" if it is no answer.
        """
        self._whole = True
        for position, choice in enumerate(self._open(response)):
            self._add(position, choice, "message")

    def count(self, index: int) -> int:
        """Chunks of one choice so far that carried anything generated."""
        parts = self._parts.get(index)
        return parts.chunks if parts is not None else 0

    def finish(self) -> list[Choice]:
        """Close the answer and return its choices by index.

        Raises:
            PolicyError: kind "protocol" if choices are missing, kind "connection" if the stream broke off.
        """
        if not self._opened:
            raise PolicyError(
                "the answer held no chunks: no stream, or no chat completions there", "protocol"
            )
        if len(self._parts) < self._n:
            raise PolicyError(f"asked for {self._n} choices, got {len(self._parts)}", "protocol")
        ended = all(parts.finish_reason for parts in self._parts.values())
        if not (ended or self._totals or self._whole):
            raise PolicyError("the answer broke off without a finish_reason", "connection")
        return [
            Choice(parts.message(self.response_id or "local"), parts.finish_reason, parts.chunks)
            for _, parts in sorted(self._parts.items())
        ]

    def usage(self) -> Usage:
        """Tokens of the answer, as the server reported them or else as counted here.

        Without a report, `completion` of a stream is its number of chunks with text. That is the token count
        where a server sends one token per chunk; it is too small where chunks hold several, and it misses
        tokens that are not shown (the end token, the frame of a tool call).
        """
        counted = None if self._whole else [parts.chunks for parts in self._parts.values()]
        usage = response_usage(self._totals or list(self._running.values()), counted)
        timed = read_timings(self._timings) if self._n == 1 else Usage()
        return timed if usage.source != "server" and timed.source == "server" else usage

    def _open(self, payload: object) -> list[Mapping[str, Any]]:
        """Choices of a chunk or an answer, after taking in what stands beside them."""
        fields = as_object(payload, "a part of the answer")
        if not isinstance(fields.get("choices"), list):
            raise PolicyError("the answer is no chat completion: it has no list of choices", "protocol")
        choices = [as_object(choice, "a choice") for choice in as_list(fields["choices"], "choices")]
        self._opened += 1
        self.response_id = self.response_id or fields.get("id")
        self._timings = fields.get("timings") or self._timings
        usage = fields.get("usage")
        if usage and (self._whole or not choices):
            self._totals.append(usage)
        elif usage:
            self._running[choices[0].get("index") or 0] = usage
        return choices

    def _add(self, position: int, choice: Mapping[str, Any], name: str) -> bool:
        index = choice.get("index", position)
        if not isinstance(index, int) or not 0 <= index < self._n:
            raise PolicyError(f"choice {index!r} came back, but {self._n} were asked for", "protocol")
        parts = self._parts.setdefault(index, ChoiceParts())
        parts.finish_reason = choice.get("finish_reason") or parts.finish_reason
        return parts.add(as_object(choice.get(name), name))


def read_piece(payload: object) -> Piece:
    """What a chunk, or a whole answer, adds to the only choice that was asked for.

    Token ids come as `token_ids` (vLLM, if asked by `return_token_ids`), or inside `logprobs` (llama.cpp).

    Raises:
        PolicyError: kind "protocol" if it is no chunk.
    """
    return next((piece for _, piece in read_pieces(payload)), Piece())


def read_pieces(payload: object) -> list[tuple[int, Piece]]:
    """What a chunk, or a whole answer, adds to each of its choices, as (index, piece); see `read_piece`.

    Raises:
        PolicyError: kind "protocol" if it is no chunk.
    """
    pieces = []
    choices = as_list(as_object(payload, "a part of the answer").get("choices"), "choices")
    for position, value in enumerate(choices):
        choice = as_object(value, "a choice")
        delta = choice.get("delta") if "delta" in choice else choice.get("message")
        piece = Piece(said(as_object(delta, "delta")), _token_ids(choice))
        pieces.append((choice.get("index", position), piece))
    return pieces


def _token_ids(choice: Mapping[str, Any]) -> tuple[int, ...] | None:
    ids = choice.get("token_ids")
    if ids is None and isinstance(logprobs := choice.get("logprobs"), Mapping):
        tokens = as_list(logprobs.get("content"), "logprobs")
        ids = [as_object(token, "a token").get("id") for token in tokens]
    whole = isinstance(ids, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in ids)
    return tuple(ids) if whole and ids is not None else None
