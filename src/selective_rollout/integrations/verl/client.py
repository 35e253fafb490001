"""verl's client of the generating servers as one member of a group sees it: every turn is reported."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from selective_rollout.engine.training import GroupCut
from selective_rollout.engine.training.remote import RemoteMember
from selective_rollout.engine.training.turn import Turn

ActionOf: TypeAlias = Callable[[list[int], str], Awaitable[str]]
"""Reads the action out of a turn's tokens and their text."""


class MemberClient:
    """Stands in for `server_manager` in one agent loop; anything but `generate` is the client's own.

    A turn is reported once the next one is asked for, or at the end of the rollout: only then is it known
    whether the rollout goes on, and the environment's reply is in the tokens. A request in flight is waited
    for also if the group is cut meanwhile: verl cannot abort a single one, and a server that is put to sleep
    must not be at work.

    Args:
        client: verl's client.
        member: this rollout.
        tokenizer: reads tokens.
        action_of: reads actions.
    """

    def __init__(self, client: Any, member: RemoteMember, tokenizer: Any, action_of: ActionOf) -> None:
        self.prompt: list[int] | None = None
        """The opening prompt; None until the model was asked."""
        self.weights: dict[str, Any] = {}
        """Versions of the weights that spoke first and last, as verl notes them."""
        self._client = client
        self._member = member
        self._tokenizer = tokenizer
        self._action_of = action_of
        self._untold: Turn | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def generate(self, *arguments: Any, prompt_ids: list[int], **named: Any) -> Any:
        """Generate as the client does.

        Raises:
            GroupCut: the group was cut.
        """
        asked = list(prompt_ids)
        self.prompt = self.prompt or asked
        await self._go_on(asked)
        output = await self._client.generate(*arguments, prompt_ids=prompt_ids, **named)
        self._note_weights(output.extra_fields)
        self._untold = await self._read(asked, output)
        if self._member.stopped:
            await self._go_on(None)
        return output

    async def finish(self, reward: float | None, *, truncated: bool) -> None:
        """The rollout ended normally, after the last turn that was spoken."""
        turn, self._untold = self._untold, None
        if turn is None:
            await self._member.finish(reward, truncated=truncated)
        else:
            await self._member.finish(reward, truncated=truncated, action=turn.action, **turn.facts())

    async def _go_on(self, asked: list[int] | None) -> None:
        """Report the last turn; asked: the tokens of the next request."""
        turn, self._untold = self._untold, None
        if turn is not None:
            observation = None if asked is None else turn.reply(self._tokenizer, asked)
            await self._member.step(turn.action, **turn.facts(observation))
        if self._member.stopped:
            raise GroupCut(self._member.id)

    async def _read(self, prompt: list[int], output: Any) -> Turn:
        said = list(output.token_ids)
        text = str(self._tokenizer.decode(said, skip_special_tokens=True))
        return Turn(prompt, said, text, await self._action_of(said, text), output.stop_reason)

    def _note_weights(self, extra_fields: dict[str, Any]) -> None:
        for name in ("min_global_steps", "max_global_steps"):
            if name in extra_fields and (name not in self.weights or name.startswith("max")):
                self.weights[name] = extra_fields[name]
