"""How a recorded rollout ended. What infrastructure broke is no behaviour, whatever reward was booked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from selective_rollout.errors import TraceError
from selective_rollout.types import RolloutFailure, RolloutStatus

_WORDS: Final[dict[RolloutStatus, str]] = {
    RolloutStatus.FINISHED: "done finished finish completed complete success succeeded successful ok stop "
    "end_turn terminated solved submitted answered",
    RolloutStatus.TRUNCATED: "truncated length max_steps max_turns max_tokens max_length step_limit "
    "turn_limit token_limit context_length",
    RolloutStatus.FAILED: "infra_abort infra_error infra_failure aborted abort timeout timed_out error "
    "errored exception crashed crash cancelled canceled killed preempted interrupted connection_error "
    "worker_lost",
    RolloutStatus.RUNNING: "running pending queued started in_progress",
    RolloutStatus.CUT: "cut gated",
}
_KNOWN: Final = {word: status for status, words in _WORDS.items() for word in words.split()}
_AMBIGUOUS: Final = ("failed", "failure", "fail")
"""Some tools say so of a task that was not solved, others of a worker that broke."""
_LONGEST_MESSAGE: Final = 500


def ending(
    word: Any,
    error: Any,
    *,
    acted: bool | None,
    scored: bool,
    declared: Mapping[str, RolloutStatus],
    where: str,
) -> tuple[RolloutStatus, RolloutFailure | None]:
    """How a rollout ended.

    Args:
        word: its status word, None if there is none.
        error: what broke; empty if nothing did.
        acted: whether it has any action; None if the log holds no actions at all.
        scored: whether it has a reward.
        declared: status words declared by the user.
        where: file:line for messages.

    Raises:
        TraceError: the status word is unknown.
    """
    message = _message(error)
    status = _status(word, declared, acted is not False and scored, where)
    if status is RolloutStatus.FAILED:
        return status, RolloutFailure(str(word).casefold(), message)
    if status is not None:
        return status, None
    if message:
        return RolloutStatus.FAILED, RolloutFailure("error", message)
    if acted is False:
        return RolloutStatus.FAILED, RolloutFailure("no_action", "the log holds no action of this rollout")
    return RolloutStatus.FINISHED, None


def _status(
    word: Any, declared: Mapping[str, RolloutStatus], behaved: bool, where: str
) -> RolloutStatus | None:
    if word is None or word == "" or word != word:
        return None
    key = str(word).strip().casefold().replace("-", "_").replace(" ", "_")
    found = declared.get(str(word)) or declared.get(key) or _KNOWN.get(key)
    if found is not None:
        return found
    if key in _AMBIGUOUS:
        return RolloutStatus.FINISHED if behaved else RolloutStatus.FAILED
    raise TraceError(
        f"{where}: unknown status {str(word)[:60]!r}; map status:WORD=MEANING, "
        f"where it means one of {', '.join(RolloutStatus)}"
    )


def _message(error: Any) -> str:
    if isinstance(error, dict):  # the tools that store an object have its text under one of these
        error = next((error[name] for name in ("message", "error") if error.get(name)), error)
    return str(error)[:_LONGEST_MESSAGE] if error and error == error else ""
