"""The final answer in a completion, in a form that two equal answers share."""

from __future__ import annotations

import re
from typing import Final
from unicodedata import normalize

from selective_rollout.actions.parse import calls_from_text
from selective_rollout.actions.text import fold, strip_reasoning
from selective_rollout.actions.values import dumps

_TAG: Final = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.IGNORECASE | re.DOTALL)
_LABEL: Final = re.compile(r"\bfinal answer\**[ \t]*:\**[ \t]*", re.IGNORECASE)
_CALL: Final = re.compile(
    r"\s*(?:answer|final_answer|finish|submit)\s*([(\[])(.*)([)\]])\s*", re.IGNORECASE | re.DOTALL
)
_BOXED: Final = "\\boxed{"
_CLOSING: Final = {"(": ")", "[": "]"}
_BOLD: Final = "**"
_WRAPPERS: Final = (
    *((_BOLD, _BOLD), ("*", "*"), ("_", "_"), ("`", "`")),
    *(("\\(", "\\)"), ("\\[", "\\]"), ("$$", "$$"), ("$", "$")),
    *(('"', '"'), ("'", "'"), ("\N{LEFT DOUBLE QUOTATION MARK}", "\N{RIGHT DOUBLE QUOTATION MARK}")),
    ("\N{LEFT SINGLE QUOTATION MARK}", "\N{RIGHT SINGLE QUOTATION MARK}"),
)


def default_answer(text: str | None) -> str | None:
    r"""Return the answer that a completion states, or None if there is no text left to read.

    Reasoning is stripped. An answer that is marked is taken out of its marks: `<answer>...</answer>`, `Final
    Answer: ...`, `\boxed{...}`, `answer(...)`; the last mark of a kind counts. White space is folded, letter
    case and the two ways to write an accent are ignored, and quotes, emphasis and a closing full stop around
    the whole are dropped. Numbers, units and wording stay as they are: give an `answer_fn` where "42" and
    "42 km" should agree.
    """
    text = strip_reasoning(text or "")
    for marked in (_tagged, _called, _labelled, _boxed):
        text = marked(text)
    answer = normalize("NFC", _unwrapped(fold(text)).casefold())
    return answer or None


def _tagged(text: str) -> str:
    found = _TAG.findall(text)
    return found[-1] if found else text


def _labelled(text: str) -> str:
    return _LABEL.split(text)[-1]


def _called(text: str) -> str:
    call = _CALL.fullmatch(text)
    if call is None or _CLOSING[call[1]] != call[3]:
        return text
    args = [value for read in calls_from_text(text.strip()) for value in (read.args or {}).values()]
    if len(args) == 1:
        return args[0] if isinstance(args[0], str) else dumps(args[0])
    return call[2]


def _boxed(text: str) -> str:
    start = text.rfind(_BOXED)
    if start < 0:
        return text
    depth = 1
    for position in range(start + len(_BOXED), len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start + len(_BOXED) : position]
    return text


def _unwrapped(text: str) -> str:
    """Drop what stands around the whole answer: emphasis, quotes, mathematics signs, a full stop."""
    while True:
        inner = text.removesuffix(".").strip()
        if inner.count(_BOLD) == 1:  # its other half went with the label
            inner = inner.removesuffix(_BOLD)
        for opening, closing in _WRAPPERS:
            core = inner.removeprefix(opening).removesuffix(closing)
            if len(core) == len(inner) - len(opening) - len(closing) and closing not in core:
                inner = core.strip()
        if inner == text:
            return text
        text = inner
