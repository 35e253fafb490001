"""From the policy's stream to the group's stream gate: pieces of completions become the rule's symbols."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from selective_rollout.engine.hold import Control
from selective_rollout.gate.streaming import Characters, StreamGate
from selective_rollout.policy.base import Message, Piece
from selective_rollout.policy.fragments import called, said
from selective_rollout.trace.group_log import GroupLog


class NoTokenIdsWarning(UserWarning):
    """A stream rule compares token ids, and the server sends none."""


class StreamFeed:
    """Hears the completions of one rollout; the `Listener` of its requests.

    Args:
        rollout: 0-based index.
        stream: the group's stream gate.
        log: writes down what the gate hears and decides.
        control: carries out what it decides.
    """

    def __init__(self, rollout: int, stream: StreamGate, log: GroupLog, control: Control) -> None:
        self._rollout = rollout
        self._stream = stream
        self._log = log
        self._control = control
        self.begin()

    def begin(self) -> None:
        """Another completion is asked for."""
        self._characters = Characters()
        self._came = False

    def heard(self, piece: Piece) -> None:
        """Another piece of the completion has come."""
        self._came = self._came or bool(piece.text or piece.token_ids)
        if self._stream.rule.level == "char":
            self._tell(self._characters.add(piece.text))
        elif piece.token_ids is not None:
            self._tell(piece.token_ids)
        elif piece.text:
            self._do_without_ids()

    def broke(self) -> None:
        """The attempt failed or was cancelled; had it begun to speak, the rest of the stream is void."""
        if self._came:
            self._log.lose(self._rollout)
            self._control.note_stream()
        self.begin()

    def complete(self, message: Message) -> None:
        """The completion has ended with this message. One that was never heard in pieces is heard now."""
        calls = called(message)
        if not self._came:
            self.heard(Piece(said(message)))
        if self._stream.rule.level == "char":
            self._tell(self._characters.end() + calls)
        elif calls and not self._came:
            self._do_without_ids()

    def _tell(self, symbols: Sequence[int] | str) -> None:
        if symbols:
            self._log.hear(self._rollout, symbols)
            self._control.note_stream()

    def _do_without_ids(self) -> None:
        """Ids are not guessed from text: the gate is off for this group."""
        self._stream.disable()
        warnings.warn(
            'the stream rule is at level "token", but the server sent no token ids: ask for them (extra_body '
            '{"return_token_ids": true} on vLLM, {"logprobs": true} on llama.cpp), or use level "char"',
            NoTokenIdsWarning,
            stacklevel=2,
        )
