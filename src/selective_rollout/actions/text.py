"""The action in the text of a completion: reasoning stripped, then the user's rule or the known formats."""

from __future__ import annotations

import re
from typing import Final

from selective_rollout.actions.options import ActionOptions
from selective_rollout.actions.parse import call_from_text, unfence
from selective_rollout.actions.raw import RawAction
from selective_rollout.actions.tagged import tagged_calls

_THINK: Final = re.compile(r"<(think|thinking)>.*?(?:</\1>|\Z)", re.IGNORECASE | re.DOTALL)
_THINK_END: Final = re.compile(r"</(?:think|thinking)>", re.IGNORECASE)

_MARKUP: Final = r"^[ \t>*#-]*"
_ACTION: Final = re.compile(
    _MARKUP + r"action(?:[ \t]*\d+)?\**[ \t]*:\**[ \t]*", re.IGNORECASE | re.MULTILINE
)
_INPUT: Final = re.compile(
    _MARKUP + r"action[ \t]*(?:\d+[ \t]*)?input(?:[ \t]*\d+)?\**[ \t]*:\**[ \t]*",
    re.IGNORECASE | re.MULTILINE,
)
_AFTER: Final = re.compile(
    _MARKUP + r"(?:observation|thought|action|final answer)(?:[ \t]*\d+)?\**[ \t]*:",
    re.IGNORECASE | re.MULTILINE,
)


def strip_reasoning(text: str) -> str:
    """Remove `<think>` blocks, also those without an end, or without a beginning (it was in the prompt)."""
    text = _THINK.sub("", text)
    return _THINK_END.split(text)[-1].strip()


def fold(text: str) -> str:
    """Fold every run of white space into one blank."""
    return " ".join(text.split())


def read_text(text: str, options: ActionOptions) -> RawAction:
    """Read the action in a completion's text; an empty action if the user's rule finds none."""
    text = strip_reasoning(text)
    if options.extract is not None:
        return RawAction(text=(options.extract(text) or "").strip())
    if options.pattern is not None:
        found = re.search(options.pattern, text)
        return RawAction(text=(found[1] or "").strip() if found else "")
    tagged = tagged_calls(text)
    if tagged:
        return RawAction(calls=tagged)
    return _react(text) or RawAction(text=text)


def _react(text: str) -> RawAction | None:
    """Read the first `Action:` of a ReAct completion; whatever follows it was imagined by the model."""
    start = _ACTION.search(text)
    if start is None:
        return None
    rest = text[start.end() :].lstrip()
    end = _AFTER.search(rest)
    turn = rest[: end.start()] if end else rest
    given = _INPUT.search(turn)
    if given is None:
        return RawAction(text=_first_value(turn))
    return RawAction(calls=(call_from_text(_first_value(turn[: given.start()]), turn[given.end() :]),))


def _first_value(text: str) -> str:
    """Return a code block's inside, an object that spans lines, or the first line."""
    whole = unfence(text)
    if whole != text.strip() or whole.startswith("{"):
        return whole
    return whole.partition("\n")[0].strip()
