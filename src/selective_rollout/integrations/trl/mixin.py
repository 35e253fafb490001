"""`GroupGateMixin`: a gate for TRL's `GRPOTrainer`, by way of the methods that it is made of.

Once per generation batch the mixin opens a group per prompt, lets the trainer generate, score and pad as
always, and then takes the dropped rows out of the loss. The methods it overrides are private to TRL, which is
why the extra pins the version and a test compares their signatures.
"""

from __future__ import annotations

import inspect
import uuid
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object
from trl import GRPOTrainer

from selective_rollout.actions import ActionOptions, from_message
from selective_rollout.actions.options import DEFAULT_OPTIONS
from selective_rollout.engine.training import Meter, TrainingGate
from selective_rollout.errors import ConfigError
from selective_rollout.integrations.trl.batch import ROW_NUMBER, GateBatch, Row, visible
from selective_rollout.integrations.trl.checkpoint import load_states, save_states
from selective_rollout.integrations.trl.layout import require_layout, warn_of_too_few_turns
from selective_rollout.integrations.trl.losses import (
    Denominator,
    NotLosslessWarning,
    lossless,
    micro_batch_scale,
    require_denominator,
    row_scale,
)
from selective_rollout.integrations.trl.rewards import kept_only
from selective_rollout.integrations.trl.tools import ToolLoop
from selective_rollout.types import Usage

if TYPE_CHECKING:
    _Trainer = Any
else:
    _Trainer = object

_KEPT = "selective_rollout_kept"


class GroupGateMixin(_Trainer):
    """Put it before a `GRPOTrainer` or a subclass of it; all other arguments go there.

    Args:
        gate: the run's gate. Evaluation is never gated.
        denominator: what dropped rows do to the gradient; see `losses`. With "sampled" and audits, would-be
            cuts that ran on are weighted by 1/audit_rate, so that the gradient before clipping is unbiased.
        task_column: column of the dataset with the prompt's own identity, for history and statistics. None:
            the row's number, or, where an environment owns the data, none at all.
        actions: how the model's messages become actions (tool loop; a rollout function has its own).

    Raises:
        ConfigError: groups would straddle processes, the rollout function is not gated, or the denominator
            does not fit the loss; or the gate is none.
    """

    reward_funcs: list[Any]
    train_dataset: Any

    def __init__(
        self,
        *args: Any,
        gate: TrainingGate,
        denominator: Denominator = "kept",
        task_column: str | None = None,
        actions: ActionOptions = DEFAULT_OPTIONS,
        **kwargs: Any,
    ) -> None:
        if not isinstance(gate, TrainingGate):
            raise ConfigError(f"gate must be a TrainingGate(...), not {type(gate).__name__}")
        bound = inspect.signature(super().__init__).bind_partial(*args, **kwargs).arguments
        super().__init__(*args, **kwargs)
        self.gate = gate
        gate.among(self.accelerator.num_processes)
        self.denominator: Denominator = denominator
        self.gate_actions = actions
        self.gate_batch: GateBatch | None = None
        """The groups of the generation batch under way; None in evaluation."""
        self.gate_inputs: list[Row] = []
        """Its rows of the dataset."""
        self._task_column = task_column
        self._tool_loop: ToolLoop | None = None
        self._gate_metrics: dict[str, float] = {}
        self._run = uuid.uuid4().hex[:8]
        self._generations: Counter[int] = Counter()
        """Generation batches so far, by update."""
        self._kept_rows: list[int] = []
        self._kept_in_window = 0
        self.reward_funcs = [
            function if isinstance(function, torch.nn.Module) else kept_only(function, self._kept_now)
            for function in self.reward_funcs
        ]
        rollouts = self.rollout_func
        require_layout(self)
        warn_of_too_few_turns(self)
        picks_prompts = gate.skip_probability > 0 or (rollouts is not None and rollouts.refill > 0)
        require_denominator(self.args, denominator, picks_prompts=picks_prompts)
        if task_column is None and bound.get("train_dataset") is not None:
            self._number_rows()
        self.lossless = lossless(self.args, aux_loss=self.aux_loss_enabled)
        if gate.enforcing and self.lossless.kind != "lossless":
            warnings.warn(f"a drop is not lossless here: {self.lossless}", NotLosslessWarning, stacklevel=2)

    def _number_rows(self) -> None:
        """Give every row of the dataset an identity that survives shuffling and restarts."""
        if not hasattr(self.train_dataset, "__len__"):
            raise ConfigError("an iterable dataset needs task_column, which names the task of each row")
        if ROW_NUMBER not in self.train_dataset.column_names:
            numbers = [str(row) for row in range(len(self.train_dataset))]
            self.train_dataset = self.train_dataset.add_column(ROW_NUMBER, numbers)
        self._task_column = ROW_NUMBER

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if self._task_column is not None and self._task_column not in self._signature_columns:
            self._signature_columns.append(self._task_column)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Any:
        if not self.model.training:
            self.gate_batch, self.gate_inputs = None, [visible(row) for row in inputs]
            return super()._generate_and_score_completions(self.gate_inputs)
        state = self.state
        self.gate.at(
            progress=state.global_step / state.max_steps if state.max_steps > 0 else 0.0,
            policy_version=state.global_step,
        )
        self.gate_batch = batch = GateBatch(
            self.gate,
            inputs,
            self.num_generations,
            name=self._batch_name(),
            run=self._run,
            task_column=self._task_column,
            temperature=self.temperature,
            may_skip=not self._is_vlm,
        )
        self.gate_inputs = batch.inputs
        try:
            output = super()._generate_and_score_completions(batch.inputs)
        finally:
            batch.close()
            self.gate_batch = None
        self._drop_rows(batch, output)
        self._share()
        return output

    def _batch_name(self) -> str:
        step = self.state.global_step
        count, self._generations[step] = self._generations[step], self._generations[step] + 1
        return f"step{step}.{count}-rank{self.accelerator.process_index}"

    def _generate(self, prompts: list[Any]) -> Any:
        batch = self.gate_batch
        result = super()._generate(prompts)
        if batch is None:
            return result
        prompt_ids, completion_ids, tool_mask, completions, logprobs, extra, images, tool_images = result
        if self.rollout_func is None and not self.tools:
            self._report_single_turn(batch, completions, completion_ids)
        for row, prompt in batch.new_prompts.items():
            prompts[row] = prompt
        kept = batch.kept()
        if not all(kept):
            tool_mask = tool_mask or [[1] * len(ids) for ids in completion_ids]
            self._blank(kept, completion_ids, tool_mask, logprobs, shorten=not any(tool_images))
        return prompt_ids, completion_ids, tool_mask, completions, logprobs, extra, images, tool_images

    def _blank(
        self,
        kept: Sequence[bool],
        completion_ids: list[list[int]],
        tool_mask: list[list[int]],
        logprobs: list[list[float]] | None,
        *,
        shorten: bool,
    ) -> None:
        """Take rows out of the loss; a completion of one token keeps them from making the batch wider."""
        for row, keep in enumerate(kept):
            if keep:
                continue
            if shorten:
                completion_ids[row] = [self._tokenizer.eos_token_id]
                if logprobs is not None:
                    logprobs[row] = [0.0]
            tool_mask[row] = [0] * len(completion_ids[row])

    def _report_single_turn(self, batch: GateBatch, completions: list[Any], ids: list[list[int]]) -> None:
        for row, slot, member in batch.members():
            if slot.group is not None:
                said = completions[row]
                message = said[-1] if isinstance(said, list) else {"role": "assistant", "content": said}
                usage = Usage(completion=len(ids[row]), source="client")
                slot.group.finish(member, action=from_message(message, self.gate_actions), usage=usage)

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: list[Any], completions: list[Any], ids: list[list[int]]
    ) -> torch.Tensor:
        rewards = super()._calculate_rewards(inputs, prompts, completions, ids)
        batch = self.gate_batch
        if batch is None:
            return rewards
        kept = torch.tensor(batch.kept(), device=rewards.device)
        rewards[~self.accelerator.gather(kept)] = torch.nan
        first = self.accelerator.process_index * len(batch)
        own = rewards[first : first + len(batch)]
        totals = (own * self.reward_weights.to(own.device)).nansum(dim=1)
        unscored = torch.isnan(own).all(dim=1).tolist()
        batch.close([None if none else total for none, total in zip(unscored, totals.tolist(), strict=True)])
        return rewards

    def _kept_now(self) -> list[bool] | None:
        return None if self.gate_batch is None else self.gate_batch.kept()

    def _tool_call_loop(
        self,
        prompts: list[Any],
        prompt_ids: list[list[int]],
        completion_ids: list[list[int]],
        completions: list[Any],
        *others: Any,
    ) -> Any:
        batch = self.gate_batch
        if batch is None:
            return super()._tool_call_loop(prompts, prompt_ids, completion_ids, completions, *others)
        tokens = [len(ids) for ids in completion_ids]
        self._tool_loop = loop = ToolLoop(batch, completions, tokens, self.gate_actions)
        try:
            result = super()._tool_call_loop(prompts, prompt_ids, completion_ids, completions, *others)
            loop.end()
        finally:
            self._tool_loop = None
        return result

    def _generate_single_turn(
        self,
        prompt_ids: list[list[int]],
        images: list[Any] | None,
        multimodal_fields: dict[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        batch, loop = self.gate_batch, self._tool_loop
        if batch is None or self.rollout_func is not None:
            return super()._generate_single_turn(prompt_ids, images, multimodal_fields, *args, **kwargs)
        rows = list(range(len(batch))) if loop is None else loop.next_turn()
        assert len(rows) == len(prompt_ids), "this version of TRL asks for rows in another way"
        slots = [slot for _, slot, _ in batch.members()]
        live = [place for place, row in enumerate(rows) if not slots[row].dropped]
        if multimodal_fields:  # per row in ways that differ by model: generate for all
            live = list(range(len(rows)))
        ids, logprobs = self._generate_for(live, prompt_ids, images, multimodal_fields, *args, **kwargs)
        if loop is not None:
            for place in live:
                loop.generated(rows[place], len(ids[place]))
            for place, row in enumerate(rows):
                if loop.stopped(row):
                    ids[place] = [self._tokenizer.eos_token_id]
                    if logprobs is not None:
                        logprobs[place] = [0.0]
        return ids, logprobs

    def _generate_for(
        self,
        live: list[int],
        prompt_ids: list[list[int]],
        images: list[Any] | None,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[list[list[int]], list[list[float]] | None]:
        """One turn of the live rows; the others say nothing."""
        ids = [[self._tokenizer.eos_token_id] for _ in prompt_ids]
        if not live:
            return ids, [[0.0] for _ in prompt_ids] if self.use_vllm else None
        pictures = [images[place] for place in live] if images is not None else None
        made, scores = super()._generate_single_turn(
            [prompt_ids[place] for place in live], pictures, *args, **kwargs
        )
        logprobs = [[0.0] for _ in prompt_ids] if scores is not None else None
        for index, place in enumerate(live):
            ids[place] = made[index]
            if logprobs is not None:
                logprobs[place] = scores[index]
        return ids, logprobs

    def _drop_rows(self, batch: GateBatch, output: dict[str, Any]) -> None:
        device = output["advantages"].device
        kept = torch.tensor(batch.kept(), device=device)
        output[_KEPT] = kept
        if self.denominator == "kept":
            everywhere = self.accelerator.gather(kept)
            scale = row_scale(self.loss_type, int(everywhere.sum()), len(everywhere))
            output["advantages"] = output["advantages"] * scale
        elif self.gate.audit_rate:
            weights = torch.tensor(batch.weights(self.gate.audit_rate), device=device)
            output["advantages"] = output["advantages"] * weights

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if self.model.training and self._buffered_inputs is not before:
            self._count_kept(self._buffered_inputs)
        return inputs

    def _count_kept(self, micro_batches: list[dict[str, Any]]) -> None:
        """Note the kept rows of each micro-batch, over all processes, once it is known which are where."""
        own = torch.stack([micro_batch.pop(_KEPT).sum() for micro_batch in micro_batches])
        counts = self.accelerator.gather(own).view(-1, len(micro_batches))
        self._kept_rows = counts.sum(dim=0).tolist()
        if self.denominator == "kept":
            scale = micro_batch_scale(self.loss_type, int((counts > 0).sum()), counts.numel())
            for micro_batch in micro_batches:
                micro_batch["advantages"] = micro_batch["advantages"] * scale

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """One micro-batch; a window without a kept row leaves weights and optimizer state as they are."""
        place = self._step % self.args.steps_per_generation
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._kept_in_window += self._kept_rows[place]
        if self.accelerator.sync_gradients:
            if not self._kept_in_window:
                # Zero gradients would still decay weights and move along the momentum; none at all do not.
                for parameter in model.parameters():
                    parameter.grad = None
            self._kept_in_window = 0
        return loss

    def _share(self) -> None:
        """Bring the processes' histories and totals together; every process generates at the same time."""
        gate = self.gate
        told = gather_object([{"news": gate.news(), "meter": gate.meter.to_dict()}])
        rank = self.accelerator.process_index
        gate.merge_history([each["news"] for other, each in enumerate(told) if other != rank])
        total = Meter.from_dict(told[0]["meter"])
        for each in told[1:]:
            total.merge(Meter.from_dict(each["meter"]))
        self._gate_metrics = {
            **total.metrics(),
            "gate/tau": gate.tau,
            "gate/enforcing": float(gate.enforcing),
        }

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Hand the gate's totals to the trainer's loggers along with its own metrics."""
        if self.model.training:
            logs.update(self._gate_metrics)
        super().log(logs, start_time)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        states = gather_object([self.gate.state_dict()])
        if self.accelerator.is_main_process:
            save_states(self._get_output_dir(trial=trial), self.state.global_step, states)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            rank, processes = self.accelerator.process_index, self.accelerator.num_processes
            load_states(self.gate, checkpoint, rank, processes)


class GatedGRPOTrainer(GroupGateMixin, GRPOTrainer):
    """`GRPOTrainer` with a gate; see `GroupGateMixin`."""
