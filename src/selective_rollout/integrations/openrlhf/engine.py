"""The generating engine as one member of a group sees it: every turn that was spoken is reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from selective_rollout.actions import ActionOptions, from_message
from selective_rollout.engine.training import GroupCut, TrainingGroup
from selective_rollout.engine.training.turn import Turn


@dataclass(frozen=True, slots=True)
class SpokenTurn(Turn):
    """A turn, and what only the engine knows of it."""

    first_logprob: float | None
    """Of its first token, if the engine was asked for it."""


class MemberEngine:
    """Stands in for `llm_engine` in one call of `execute`; anything but `generate` is the engine's own.

    A turn is reported once the next one is asked for, or at the end of the rollout: only then is it known
    whether the rollout goes on, and the environment's reply is in the tokens.

    Args:
        engine: OpenRLHF's engine actor.
        group: the group of the rollout.
        rollout: its index.
        tokenizer: reads tokens.
        options: how completions become actions.
    """

    def __init__(
        self, engine: Any, group: TrainingGroup, rollout: int, tokenizer: Any, options: ActionOptions
    ) -> None:
        self.first: SpokenTurn | None = None
        """The opening turn; None until it was spoken."""
        self._engine = engine
        self._group = group
        self._rollout = rollout
        self._tokenizer = tokenizer
        self._options = options
        self._untold: list[SpokenTurn] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(
        self, prompt_token_ids: Sequence[int], sampling_params: Any, *others: Any, **named: Any
    ) -> Any:
        """Generate as the engine does.

        Raises:
            GroupCut: the group was cut.
        """
        if not (self._tell(list(prompt_token_ids)) and await self._group.permit(self._rollout)):
            raise GroupCut(self._group.id)
        output = await self._engine.generate(prompt_token_ids, sampling_params, *others, **named)
        turn = self._read(list(prompt_token_ids), output.outputs[0])
        self.first = self.first or turn
        self._untold.append(turn)
        return output

    def finish(self, reward: object, *, truncated: bool) -> None:
        """The rollout ended normally, after the last turn that was spoken."""
        if not self._untold:
            self._group.finish(self._rollout, reward, truncated=truncated)
            return
        *earlier, last = self._untold
        for turn in earlier:
            self._group.step(self._rollout, turn.action, **turn.facts())
        self._group.finish(self._rollout, reward, truncated=truncated, action=last.action, **last.facts())

    def _tell(self, asked: list[int]) -> bool:
        """Report what was spoken before this request; False: the rollout must not go on."""
        untold, self._untold = self._untold, []
        go_on = not self._group.stopped
        for turn in untold:
            facts = turn.facts(turn.reply(self._tokenizer, asked))
            go_on = self._group.step(self._rollout, turn.action, **facts)
        return go_on

    def _read(self, prompt: list[int], output: Any) -> SpokenTurn:
        said = list(output.token_ids)
        text = str(self._tokenizer.decode(said, skip_special_tokens=True))
        first = output.logprobs[0].get(said[0]) if said and getattr(output, "logprobs", None) else None
        return SpokenTurn(
            prompt,
            said,
            text,
            from_message({"role": "assistant", "content": text}, self._options),
            output.finish_reason,
            first.logprob if first is not None else None,
        )
