"""From the turns a log holds to the steps that count."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final

from selective_rollout.actions import ActionOptions, RawAction, canonicalise
from selective_rollout.actions.read import is_cut_off
from selective_rollout.trace.group_log import observation_hash
from selective_rollout.trace.importers.tokens import completion_sum
from selective_rollout.trace.importers.turns import Turn
from selective_rollout.types import Step, Usage


@dataclass(frozen=True, slots=True)
class Settled:
    """The steps of a rollout, and what of its log became none.

    Attributes:
        steps: the steps, numbered from 1.
        retried: turns left out because they repeat a call with its id and arguments.
        ghosts: turns left out because they follow one that its token limit had cut off.
        lost: tokens of the completion that was cut off.
        wasted: completion tokens known of the turns left out.
    """

    steps: tuple[Step, ...]
    retried: int
    ghosts: int
    cut_off: bool
    lost: Usage | None
    wasted: int


Symbol = Callable[[RawAction], str]
"""Makes the canonical symbol of an action."""

_REMEMBERED: Final = 8192
_LONGEST_REMEMBERED: Final = 500


def remembering(options: ActionOptions) -> Symbol:
    """`canonicalise` under some options, with a memory for short texts: rollouts repeat each other a lot."""
    remembered = lru_cache(_REMEMBERED)(partial(canonicalise, options=options))

    def symbol(action: RawAction) -> str:
        if action.calls or len(action.text) > _LONGEST_REMEMBERED:
            return canonicalise(action, options)
        return remembered(action.text)

    return symbol


def settle(turns: Sequence[Turn], symbol: Symbol) -> Settled:
    """Make steps of the turns that count.

    A completion cut off by its token limit is no step, as in a live run, and ends the rollout: what the log
    has behind it can never be trained on.
    """
    end = next((i for i, turn in enumerate(turns) if is_cut_off(turn.finish_reason)), len(turns))
    ghosts = turns[end + 1 :]
    kept, retried = _without_retries(turns[:end])
    return Settled(
        steps=tuple(_step(i, turn, symbol) for i, turn in enumerate(kept, start=1)),
        retried=len(retried),
        ghosts=len(ghosts),
        cut_off=end < len(turns),
        lost=turns[end].usage if end < len(turns) else None,
        wasted=completion_sum(turn.usage for turn in (*retried, *ghosts)),
    )


def _step(index: int, turn: Turn, symbol: Symbol) -> Step:
    return Step(
        index=index,
        action=symbol(turn.action),
        completion=turn.completion,
        observation=turn.observation,
        observation_hash=observation_hash(turn.observation),
        is_error=turn.is_error,
        usage=turn.usage,
        finish_reason=turn.finish_reason,
    )


def _without_retries(turns: Sequence[Turn]) -> tuple[list[Turn], list[Turn]]:
    """Split off the turns whose calls all came before with the same ids and arguments.

    The rule of `actions.from_messages`; here the replies and tokens of the turns have to follow. The reply
    to a retry is the reply to the call.
    """
    if not any(turn.action.calls for turn in turns):
        return list(turns), []
    trusted = _trusted_ids(turns)
    first: dict[str, Turn] = {}
    kept: list[Turn] = []
    retried: list[Turn] = []
    for turn in turns:
        ids = [call.id for call in turn.action.calls]
        if ids and all(call_id in trusted and call_id in first for call_id in ids):
            retried.append(turn)
            original = first[str(ids[0])]
            if turn.observation is not None:
                original.observation, original.is_error = turn.observation, turn.is_error
            continue
        first.update((call_id, turn) for call_id in ids if call_id is not None)
        kept.append(turn)
    return kept, retried


def _trusted_ids(turns: Sequence[Turn]) -> set[str]:
    """Ids that came again, always with the same call; an id reused for another call proves nothing."""
    calls = [call for turn in turns for call in turn.action.calls if call.id is not None]
    uses = Counter(call.id for call in calls)
    known: defaultdict[str, set[str]] = defaultdict(set)
    for call in calls:
        if call.id is not None and uses[call.id] > 1:
            known[call.id].add(canonicalise(RawAction(calls=(call,))))
    return {call_id for call_id, calls in known.items() if len(calls) == 1}
