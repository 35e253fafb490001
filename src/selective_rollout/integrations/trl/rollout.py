"""`gated_rollout_func`: the multi-turn loop between a model and text environments, for TRL's `rollout_func`.

All rollouts of a rank go turn by turn together, since the trainer generates for a batch at a time. A group
that is cut leaves the loop; if there is a budget for it, a fresh prompt takes its place.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from selective_rollout.actions import ActionOptions
from selective_rollout.actions.options import DEFAULT_OPTIONS
from selective_rollout.draws import stable_fraction
from selective_rollout.engine.training import Refill
from selective_rollout.env.base import EnvironmentFactory
from selective_rollout.errors import ConfigError, EnvironmentFault
from selective_rollout.integrations.trl.batch import GateBatch, Row, Slot, visible
from selective_rollout.integrations.trl.rewards import ENVIRONMENT_REWARD
from selective_rollout.integrations.trl.talk import Limits, Talk
from selective_rollout.integrations.trl.waiting import Waiting
from selective_rollout.integrations.trl.wording import Wording


class BrokenRolloutWarning(UserWarning):
    """A rollout is dropped, because its environment broke."""


class GatedRollouts:
    """Made by `gated_rollout_func`; call it as the trainer does, with the rank's prompts and the trainer."""

    def __init__(
        self,
        environment: EnvironmentFactory,
        *,
        max_steps: int,
        max_tokens_per_turn: int | None,
        refill: int,
        actions: ActionOptions,
    ) -> None:
        if max_steps < 1:
            raise ConfigError(f"max_steps must be at least 1, not {max_steps}")
        if refill < 0:
            raise ConfigError(f"refill must be at least 0, not {refill}")
        self._environment = environment
        self.max_steps = max_steps
        """Turns of a rollout."""
        self._max_tokens_per_turn = max_tokens_per_turn
        self.refill = refill
        """Groups that may be begun in the place of others, per batch."""
        self._actions = actions

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Roll out every prompt once; see TRL's `RolloutFunc`.

        Raises:
            ConfigError: the trainer has no gate, or a refill has nothing to draw from.
            EnvironmentFault: not one environment of the batch works.
        """
        if not hasattr(trainer, "gate_batch"):
            raise ConfigError("gated_rollout_func needs a trainer with a gate: use GatedGRPOTrainer")
        with Waiting() as waiting, _turn_limit(trainer, self._max_tokens_per_turn):
            run = _Run(self, trainer, waiting)
            try:
                return run.results(prompts)
            finally:
                run.close()


def gated_rollout_func(
    environment: EnvironmentFactory,
    *,
    max_steps: int = 30,
    max_tokens_per_turn: int | None = None,
    refill: int = 0,
    actions: ActionOptions = DEFAULT_OPTIONS,
) -> GatedRollouts:
    """Make a rollout function for a `GatedGRPOTrainer`.

    Args:
        environment: makes the world of one rollout from its task (prompt, and as metadata the row of the
            dataset) and its index in the group; see `env.base`. `environment_reward` hands on its reward.
        max_steps: turns of a rollout.
        max_tokens_per_turn: tokens of one turn; None: the trainer's max_completion_length, which also limits
            all turns and observations of a rollout together.
        refill: groups per batch and rank that may be begun with fresh prompts in the place of skipped or cut
            ones. What is still missing then stays missing. Needs a dataset that can be indexed.
        actions: how completions become actions.

    Raises:
        ConfigError: a number is out of range.
    """
    return GatedRollouts(
        environment,
        max_steps=max_steps,
        max_tokens_per_turn=max_tokens_per_turn,
        refill=refill,
        actions=actions,
    )


class _Run:
    """One call of the rollout function."""

    def __init__(self, made: GatedRollouts, trainer: Any, waiting: Waiting) -> None:
        self._made = made
        self._waiting = waiting
        self._trainer = trainer
        self._batch: GateBatch | None = trainer.gate_batch
        self._wording = Wording(trainer)
        self._limits = Limits(
            max_steps=made.max_steps,
            completion=trainer.max_completion_length,
            context=getattr(trainer.model.config, "max_position_embeddings", None),
        )
        self._talks: list[Talk] = []
        self._draws = 0
        self._given_up: set[int] = set()
        """First rows of the places that stay empty."""

    def results(self, prompts: Sequence[Any]) -> dict[str, Any]:
        """Go turn by turn until nobody has anything to say any more."""
        self._begin(prompts)
        refill = self._refill_budget()
        while True:
            if refill is not None:
                self._fill(refill)
            live = [talk for talk in self._talks if talk.is_live]
            if not live:
                break
            ids, logprobs = self._trainer._generate_single_turn([talk.context for talk in live], None, {}, 1)
            for place, talk in enumerate(live):
                talk.said(ids[place], logprobs[place] if logprobs is not None else None)
            self._waiting.for_all([talk.act() for talk in live])
        self._tell_of_broken()
        for talk in self._talks:
            talk.seal(self._trainer._tokenizer.eos_token_id)
        scored = any(talk.logprobs is not None for talk in self._talks)
        return {
            "prompt_ids": [talk.prompt_ids for talk in self._talks],
            "completion_ids": [talk.ids for talk in self._talks],
            "logprobs": [talk.logprobs or [0.0] * len(talk.ids) for talk in self._talks] if scored else None,
            "env_mask": [talk.mask for talk in self._talks],
            ENVIRONMENT_REWARD: [talk.reward for talk in self._talks],
        }

    def close(self) -> None:
        self._waiting.for_all([talk.close() for talk in self._talks])

    def _tell_of_broken(self) -> None:
        """Say which environments broke; if all of a batch did, the set-up is wrong and training must end."""
        errors = [talk.broken for talk in self._talks if talk.broken is not None]
        texts = [f"{type(error).__name__}: {error}" for error in errors]
        if errors and len(errors) == sum(talk.begun for talk in self._talks):
            raise EnvironmentFault(f"every environment of this batch broke: {texts[0]}") from errors[0]
        for text in dict.fromkeys(texts):
            warnings.warn(
                f"an environment broke, and its rollout is dropped: {text}",
                BrokenRolloutWarning,
                stacklevel=2,
            )

    def _begin(self, prompts: Sequence[Any]) -> None:
        rows = self._trainer.gate_inputs
        if self._batch is None:
            size = self._trainer.num_generations_eval
            self._talks = [
                self._talk(None, place % size, prompt, rows[place]) for place, prompt in enumerate(prompts)
            ]
        else:
            self._talks = [
                self._talk(slot, member, prompts[row], rows[row])
                for row, slot, member in self._batch.members()
            ]
        self._start(self._talks)

    def _start(self, talks: Sequence[Talk]) -> None:
        self._waiting.for_all([talk.start() for talk in talks if talk.is_live])

    def _talk(self, slot: Slot | None, member: int, prompt: Any, row: Row) -> Talk:
        return Talk(
            slot,
            member,
            prompt,
            row,
            wording=self._wording,
            limits=self._limits,
            environment=self._made._environment,
            options=self._made._actions,
        )

    def _refill_budget(self) -> Refill | None:
        batch = self._batch
        if batch is None or not self._made.refill:
            return None
        if not hasattr(self._trainer.train_dataset, "__len__"):
            raise ConfigError("refill draws fresh prompts by number: it needs a dataset that can be indexed")
        refill = Refill(len(batch.slots), self._made.refill)
        refill.start()
        return refill

    def _fill(self, refill: Refill) -> None:
        """Give the places of dropped groups to fresh prompts, as far as the budget goes."""
        batch = self._batch
        assert batch is not None
        for slot in batch.slots:
            if not slot.dropped or slot.first in self._given_up:
                continue
            refill.ended(kept=False)
            while refill.start():
                row = self._fresh_row(batch)
                if row is None or not batch.replace(slot, row):
                    refill.unstarted()
                    continue
                self._restart(slot, row)
                break
            else:
                self._given_up.add(slot.first)

    def _restart(self, slot: Slot, row: Row) -> None:
        old = [self._talks[place] for place in slot.rows]
        self._waiting.for_all([talk.close() for talk in old])
        for member, place in enumerate(slot.rows):
            self._talks[place] = self._talk(slot, member, row["prompt"], visible(row))
        self._start([self._talks[place] for place in slot.rows])

    def _fresh_row(self, batch: GateBatch) -> Row | None:
        """A row drawn by the batch's name, of a task that is not under way; None: that one is."""
        dataset = self._trainer.train_dataset
        self._draws += 1
        row = dict(dataset[int(stable_fraction("refill", batch.name, self._draws) * len(dataset))])
        return None if batch.is_under_way(row) else row


@contextmanager
def _turn_limit(trainer: Any, tokens: int | None) -> Iterator[None]:
    """Let the trainer's backend generate so many tokens at most, for a while."""
    holder, name = (
        (trainer.vllm_generation, "max_completion_length")
        if trainer.use_vllm
        else (trainer.generation_config, "max_new_tokens")
    )
    before = getattr(holder, name)
    setattr(holder, name, tokens or before)
    try:
        yield
    finally:
        setattr(holder, name, before)
