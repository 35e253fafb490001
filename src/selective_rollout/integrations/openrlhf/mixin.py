"""`GroupGateMixin`: any agent executor of OpenRLHF, with a gate over the rollouts of each prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openrlhf.utils.agent import MultiTurnAgentExecutor

from selective_rollout.actions import ActionOptions
from selective_rollout.actions.options import DEFAULT_OPTIONS
from selective_rollout.engine.training import GroupCut, TrainingGate, TrainingGroup, guarded
from selective_rollout.errors import ConfigError
from selective_rollout.integrations.openrlhf.engine import MemberEngine, SpokenTurn
from selective_rollout.integrations.openrlhf.rows import DROPPED_SCORE, STAND_IN_REWARD, dropped_row
from selective_rollout.integrations.openrlhf.which import Call, Calls, TaskOf, digest


class GroupGateMixin:
    """Put it before an executor class: `class AgentExecutor(GroupGateMixin, YourExecutor)`.

    A turn is one answer of `llm_engine.generate`, and belongs to the rollout whose `execute` was given that
    engine. A cut cancels what the rollout is waiting for, an answer in flight or the environment.

    Args:
        args: go to the executor.
        gate: the gate of this engine actor; each actor has its own.
        group_size: `--rollout.n_samples_per_prompt`; other sizes run without a gate.
        dynamic_filtering: whether training runs with `--algo.dynamic_filtering_enable`. With it dropped
            groups are filtered out and replaced; without it their rows stay, and teach nothing.
        temperature: `--rollout.temperature`; other temperatures are evaluation, and run without a gate.
        actions: how completions become actions.
        task_of: names the task of a prompt and its label; by default both texts are its name.
        extra_logs: names that your agent logs. They stand at 0 in dropped rows, and need not be given if
            every group is filtered, or if nothing is logged.
        planned_groups: groups this actor will see in the whole training, for a schedule.
        named: go to the executor.

    Raises:
        ConfigError: a group of fewer than two, or a gate that is none, or that skips prompts where nothing
            replaces them.
    """

    def __init__(
        self,
        *args: Any,
        gate: TrainingGate,
        group_size: int,
        dynamic_filtering: bool,
        temperature: float = 1.0,
        actions: ActionOptions = DEFAULT_OPTIONS,
        task_of: TaskOf = digest,
        extra_logs: Sequence[str] = (),
        planned_groups: int | None = None,
        **named: Any,
    ) -> None:
        super().__init__(*args, **named)
        if not isinstance(gate, TrainingGate):
            raise ConfigError(f"gate must be a TrainingGate(...), not {type(gate).__name__}")
        if gate.skip_probability and not dynamic_filtering:
            raise ConfigError("skip_probability needs dynamic filtering, which replaces what is skipped")
        self.gate = gate
        self._dynamic_filtering = dynamic_filtering
        self._actions = actions
        self._log_names = dict.fromkeys(extra_logs)
        self._calls = Calls(
            gate,
            group_size=group_size,
            temperature=temperature,
            without_images=not dynamic_filtering,
            task_of=task_of,
            planned_groups=planned_groups,
        )

    async def execute(
        self,
        prompt: Any,
        label: Any,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
        images: Any = None,
    ) -> Any:
        """Roll out once; see `AgentExecutorBase`."""
        call, rollout = await self._calls.join(prompt, label, sampling_params, images)
        arguments = {
            "prompt": prompt,
            "label": label,
            "sampling_params": sampling_params,
            "max_length": max_length,
            "hf_tokenizer": hf_tokenizer,
            "images": images,
        }
        if call.group is None and not call.skipped:
            return await super().execute(llm_engine=llm_engine, **arguments)  # type: ignore[misc]
        response, first = None, None
        if call.group is not None:
            engine = MemberEngine(llm_engine, call.group, rollout, hf_tokenizer, self._actions)
            response = await self._run(call, call.group, rollout, engine, arguments)
            first = engine.first
        return self._row(call, response, first, arguments)

    async def _run(
        self,
        call: Call,
        group: TrainingGroup,
        rollout: int,
        engine: MemberEngine,
        arguments: dict[str, Any],
    ) -> dict[str, Any] | None:
        """Roll out and wait for the others; None if the group was cut."""
        response = None
        try:
            async with guarded(group, rollout):
                response = await super().execute(llm_engine=engine, **arguments)  # type: ignore[misc]
            engine.finish(response["reward"], truncated=bool(response.get("truncated")))
        except GroupCut:
            response = None
        except BaseException as error:
            call.leave(rollout, error)
            raise
        call.leave(rollout)
        await call.all_ended()
        return None if group.stopped else response

    def _row(
        self, call: Call, response: dict[str, Any] | None, first: SpokenTurn | None, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        if response is not None:
            logs = response.get("extra_logs") or {}
            self._log_names.update(dict.fromkeys(logs))
            return {**response, "extra_logs": {**logs, **self._gate_logs(kept=True)}}
        return dropped_row(
            arguments["prompt"],
            arguments["label"],
            arguments["images"],
            first=first,
            tokenizer=arguments["hf_tokenizer"],
            with_logprobs=arguments["sampling_params"].logprobs is not None,
            score=DROPPED_SCORE if self._dynamic_filtering else STAND_IN_REWARD,
            extra_logs={**dict.fromkeys(self._log_names, 0.0), **self._gate_logs(kept=False)},
        )

    def _gate_logs(self, *, kept: bool) -> dict[str, float]:
        """The same names in every row, since OpenRLHF joins rows by them."""
        return {
            "gate/kept": float(kept),
            "gate/cut_rate": self.gate.meter.cut_rate or 0.0,
            "gate/enforcing": float(self.gate.enforcing),
        }


class GatedMultiTurnExecutor(GroupGateMixin, MultiTurnAgentExecutor):  # type: ignore[misc]
    """OpenRLHF's multi-turn executor with a gate: takes the agent's class and the gate's arguments."""
