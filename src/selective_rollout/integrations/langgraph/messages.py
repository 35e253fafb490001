"""What an agent's messages say: its actions, the replies to them, and the tokens they took."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from selective_rollout.actions import ActionOptions, RawAction, RawCall, canonicalise
from selective_rollout.actions.fields import get
from selective_rollout.errors import ConfigError


class Conversation:
    """Tells the new messages of a growing state from those that were there before.

    States repeat all messages at every superstep, and middleware rewrites some in place, so a message is
    known by its id; one without an id by the object that it is.

    Args:
        known: messages that belong to nobody's step, such as those of the input.
    """

    def __init__(self, known: Iterable[Any] = ()) -> None:
        self._ids: set[str] = set()
        self._objects: dict[int, Any] = {}
        self.new(known)

    def new(self, messages: Iterable[Any]) -> list[Any]:
        """Those not seen before, in order; they count as seen from here on."""
        return [message for message in messages if self._is_new(message)]

    def _is_new(self, message: Any) -> bool:
        name = get(message, "id")
        if isinstance(name, str) and name:
            is_new = name not in self._ids
            self._ids.add(name)
            return is_new
        is_new = id(message) not in self._objects
        self._objects[id(message)] = message  # kept, so that its id is not given to another one
        return is_new


def messages_of(state: Any, key: str) -> Sequence[Any]:
    """The messages in a graph's state (a dict, dataclass or pydantic model); empty before there are any.

    Raises:
        ConfigError: what stands under the key is no list.
    """
    messages = get(state, key)
    if messages is None:
        return ()
    if not isinstance(messages, list | tuple):
        raise ConfigError(f"the agent's state holds {type(messages).__name__} under {key!r}, not messages")
    return messages


def text_of(message: Any) -> str:
    """A message's text: its text blocks joined, and the value of `text` where a content holds none."""
    content = get(message, "content")
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list | tuple) else ()
    texts = (block if isinstance(block, str) else get(block, "text") for block in blocks)
    return "".join(text for text in texts if isinstance(text, str))


def answer_reader(
    answer_fn: Callable[[str], str | None], answer_key: str | None, messages_key: str
) -> Callable[[Any], str | None]:
    """What reads the answer in a final state: in a key of its own, or in the last message."""

    def read(state: Any) -> str | None:
        if answer_key is not None:
            value = get(state, answer_key)
            return None if value is None else answer_fn(value if isinstance(value, str) else str(value))
        messages = messages_of(state, messages_key)
        return answer_fn(text_of(messages[-1])) if messages else None

    return read


def acts(action: RawAction, options: ActionOptions) -> bool:
    """Whether a message certainly asks for something to be done, and is not prose that may end a rollout."""
    declared = options.pattern is not None or options.extract is not None
    return bool(action.calls) or (declared and bool(action.text))


def final_action(answer: str | None, options: ActionOptions) -> str:
    """The canonical action of a rollout's own end: equal for equal answers, however they are worded."""
    args = {} if answer is None else {"answer": answer}
    return canonicalise(RawAction(calls=(RawCall("final", args),)), options)


def reply_of(messages: Sequence[Any]) -> tuple[str | None, bool | None]:
    """What the world said to an action, and whether that was an error (None: nobody said).

    Args:
        messages: what followed the action, up to the model's next message.
    """
    if not messages:
        return None, None
    statuses = [get(message, "status") for message in messages if get(message, "tool_call_id")]
    return "\n".join(map(text_of, messages)), "error" in statuses if statuses else None


def unanswered_calls(messages: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Tool calls of the newest assistant message that no tool message answers.

    Returns:
        The calls as the message holds them, in order; none if something other than tool messages follows,
        since no reply could be put in its place.
    """
    answered: set[Any] = set()
    for message in reversed(messages):
        if get(message, "tool_call_id"):
            answered.add(get(message, "tool_call_id"))
            continue
        calls = [*(get(message, "tool_calls") or ()), *(get(message, "invalid_tool_calls") or ())]
        return [call for call in calls if call.get("id") and call["id"] not in answered]
    return []
