"""The canonical symbol of an action: equal text for what should count as the same behaviour.

A tool call becomes `name({...})` with its arguments in one JSON spelling, several calls of one step are
sorted and joined by `+`, broken arguments become `invalid:name(raw)`, and any other text gets its white space
folded. Canonical actions can be canonicalised again: under the same options nothing changes, and stricter
options (such as `name_only`) apply to recorded actions as they would have to the messages.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, Final

from selective_rollout.actions.options import DEFAULT_OPTIONS, ActionOptions
from selective_rollout.actions.parse import INVALID, call_name, calls_from_json, calls_from_text, unfence
from selective_rollout.actions.raw import RawAction, RawCall
from selective_rollout.actions.scrub import scrub_text, scrub_value
from selective_rollout.actions.text import fold
from selective_rollout.actions.values import dumps, loads, without

_ANY: Final = "*"
_JOINT: Final = "+"
_UNSAFE_IN_NAME: Final = re.compile(r"[\s()\[\]{}\"'+=,]+")


def canonicalise(action: RawAction | str, options: ActionOptions = DEFAULT_OPTIONS) -> str:
    """Return the canonical symbol of an action; the empty string if there is no action.

    Args:
        action: what `read_action` returned, or an action as text (recorded, or canonical already). Text is
            taken as the action itself: reasoning and ReAct lines are the business of `read_action`.
        options: what counts as the same action.
    """
    calls, value = _understood(action, options)
    if calls:
        symbols = [_call_symbol(call, options) for call in calls]
        return _JOINT.join(symbols if options.ordered else sorted(symbols))
    if value is not None:
        return _value_text(value, options)
    text = action if isinstance(action, str) else action.text
    folded = fold(text)  # which may have become readable: JSON knows fewer blanks than Unicode
    return _text_symbol(folded, options) if folded == text else canonicalise(folded, options)


def tool_names(action: RawAction | str, options: ActionOptions = DEFAULT_OPTIONS) -> tuple[str, ...]:
    """Return the tools an action calls, in order; of a text action its first word, if it has one."""
    calls, value = _understood(action, options)
    if calls or value is not None:
        return tuple(_safe_name(call) for call in calls)
    head = _first_word(action if isinstance(action, str) else action.text)
    return (head,) if head else ()


def changes_world(action: RawAction | str, options: ActionOptions) -> bool | None:
    """Tell whether an action was declared to change the world; None if no effects were declared."""
    if callable(options.effects):
        return bool(options.effects(action if isinstance(action, RawAction) else RawAction(text=action)))
    effects = frozenset(options.effects)
    return any(name in effects for name in tool_names(action, options)) if effects else None


def _understood(action: RawAction | str, options: ActionOptions) -> tuple[tuple[RawCall, ...], Any]:
    """Return the calls of an action, or else the JSON container that its text is, or else neither."""
    if isinstance(action, RawAction) and action.calls:
        return action.calls, None
    text = unfence(action if isinstance(action, str) else action.text)
    if not text.startswith(("{", "[")):
        return calls_from_text(text), None
    try:
        value = without(loads(text), (path for path in options.ignore_args.get(_ANY, ()) if path != _ANY))
    except ValueError:
        return calls_from_text(text), None
    return calls_from_json(value), value


def _call_symbol(call: RawCall, options: ActionOptions) -> str:
    name = _safe_name(call)
    if options.name_only:
        return name if call.args is not None else f"{INVALID}{name}"
    if call.args is not None:
        ignored = (*options.ignore_args.get(_ANY, ()), *options.ignore_args.get(call.name, ()))
        return f"{name}({_value_text(without(dict(call.args), ignored), options)})"
    raw = _broken_text(call.raw or "", options)
    return f"{INVALID}{name}({scrub_text(raw) if options.scrub_volatile else raw})"


def _broken_text(raw: str, options: ActionOptions) -> str:
    with suppress(ValueError):  # no object, but JSON: its spelling is no difference
        raw = dumps(loads(raw), numeric_equal=options.numeric_equal)
    return fold(raw).replace(f"){_JOINT}", f") {_JOINT}")  # so that it ends no symbol but its own


def _value_text(value: Any, options: ActionOptions) -> str:
    return dumps(scrub_value(value) if options.scrub_volatile else value, numeric_equal=options.numeric_equal)


def _text_symbol(text: str, options: ActionOptions) -> str:
    if options.name_only:
        first = _first_word(text)  # which may be readable where the whole is not
        return first if first == text else canonicalise(first, options)
    name = call_name(text)
    if name is not None and text.endswith((")", "]")) and _ANY in options.ignore_args.get(name, ()):
        return f"{name}({{}})"
    return scrub_text(text) if options.scrub_volatile else text


def _first_word(text: str) -> str:
    return call_name(text.strip()) or next(iter(text.split(maxsplit=1)), "")


def _safe_name(call: RawCall) -> str:
    """Return the tool's name without the characters that structure a symbol."""
    return _UNSAFE_IN_NAME.sub("_", call.name) or "?"
