"""`GroupGateMixin`: any agent loop of verl, with a gate over the rollouts of each prompt."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from verl.experimental.agent_loop.agent_loop import AgentLoopBase
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop

from selective_rollout.actions import ActionOptions, from_message
from selective_rollout.engine.training import GroupCut, TrainingGate
from selective_rollout.engine.training.remote import RemoteMember
from selective_rollout.errors import ConfigError
from selective_rollout.integrations.verl.client import MemberClient
from selective_rollout.integrations.verl.gates import GateSettings, link_to
from selective_rollout.integrations.verl.output import dropped_output, scored_later
from selective_rollout.integrations.verl.which import (
    NotGatedWarning,
    digest,
    is_training,
    number_in_group,
    require_distinct_validation,
)
from selective_rollout.types import SamplingInfo

_GATE: Final = tuple(GateSettings.__dataclass_fields__)
_CANONICAL: Final = "reward"
"""The filter's metric that is the reward itself; any other one is read from what the reward function adds."""


class NotEvictedWarning(UserWarning):
    """Groups are cut in a training that does not filter them out: their rows stay, masked."""


class GroupGateMixin:
    """Put it before an agent loop class: `class Gated(GroupGateMixin, YourAgentLoop)`.

    A turn is one answer of `server_manager.generate`. A group is the rollouts of one `uid`; they know each
    other by the gate, wherever they run. A rollout returns once all of its group have ended.

    Args:
        args: go to the agent loop.
        actions: how completions become actions, as `ActionOptions.from_dict` reads it.
        reward_extra_keys: names that your reward function returns beside the score. Needed only where no
            filter evicts cut groups.
        named: the settings of the gate, see `GateSettings`; the others go to the agent loop.

    Raises:
        ConfigError: a setting is wrong, or validation samples as training does.
    """

    config: Any
    rollout_config: Any
    server_manager: Any
    tokenizer: Any
    processor: Any

    def __init__(
        self,
        *args: Any,
        actions: Mapping[str, Any] | None = None,
        reward_extra_keys: Sequence[str] = (),
        **named: Any,
    ) -> None:
        settings = {name: named.pop(name) for name in _GATE if name in named}
        super().__init__(*args, **named)
        self.gate_settings = GateSettings(**settings)
        self.action_options = ActionOptions.from_dict(actions or {})
        self._reward_extra_keys = tuple(reward_extra_keys)
        require_distinct_validation(self.rollout_config)

    @classmethod
    def make_gate(cls, settings: GateSettings) -> TrainingGate:
        """Make the gate, where it is kept; override it for what the settings do not offer."""
        return settings.make()

    def task_of(self, fields: Mapping[str, Any]) -> str:
        """Name the task of a row; override it if your rows have a name that is their own."""
        return digest(fields)

    async def action_of(self, tokens: list[int], text: str) -> str:
        """Read the action out of what the model said in a turn."""
        return from_message({"role": "assistant", "content": text}, self.action_options)

    async def run(self, sampling_params: dict[str, Any], **fields: Any) -> Any:
        """Roll out once; see `AgentLoopBase`."""
        member = self._member(sampling_params, fields)
        if member is None:
            return await super().run(sampling_params, **fields)  # type: ignore[misc]
        client = MemberClient(self.server_manager, member, self.tokenizer, self.action_of)
        self.server_manager = client  # of this rollout alone, as the agent loop is
        async with member:
            output = await self._run(member, client, sampling_params, fields)
            unscored = output is not None and _last(output).reward_score is None
            if await member.kept(scored_later=unscored) and output is not None:
                return _replace_last(output, scored_later(_last(output), member)) if unscored else output
        return self._dropped(client)

    async def _run(
        self, member: RemoteMember, client: MemberClient, sampling_params: dict[str, Any], fields: Any
    ) -> Any:
        """Roll out; None if the group was cut."""
        try:
            output = await super().run(sampling_params, **fields)  # type: ignore[misc]
        except GroupCut:
            return None
        except BaseException as error:
            await member.fail(type(error).__name__, str(error))
            raise
        last = _last(output)
        truncated = len(last.response_ids) >= self.rollout_config.response_length
        await client.finish(last.reward_score, truncated=truncated)
        return output

    def _member(self, sampling_params: Mapping[str, Any], fields: Mapping[str, Any]) -> RemoteMember | None:
        """This rollout as one of its group; None: it runs without a gate."""
        size = int(self.rollout_config.n)
        if size < 2 or not is_training(sampling_params, self.rollout_config):
            return None
        number, uid = number_in_group(fields, size), fields.get("uid")
        if uid is None or number is None or number >= size:
            warnings.warn(
                f"a rollout runs without a gate: uid {uid!r} and number {number} do not tell its place in a "
                f"group of {size} (rollout.n)",
                NotGatedWarning,
                stacklevel=3,
            )
            return None
        sampling = SamplingInfo(temperature=float(self.rollout_config.temperature))
        return RemoteMember(
            link_to(self.gate_settings, partial(self.make_gate, self.gate_settings)),
            str(uid),
            number,
            size,
            task_id=self.task_of(fields),
            sampling=[sampling] * size,
        )

    def _dropped(self, client: MemberClient) -> Any:
        metric = filter_metric(self.config)
        if metric is None:
            warnings.warn(
                "cut groups stay in the batch, masked: enable algorithm.filter_groups, which evicts them",
                NotEvictedWarning,
                stacklevel=3,
            )
        added = () if metric in (None, _CANONICAL) else (str(metric),)
        end = self.tokenizer.eos_token_id or 0
        # A prompt with images would be read again, together with images that are not there.
        readable = client.prompt if self.processor is None else None
        return dropped_output(
            readable or [end],
            end,
            with_logprobs=bool(self.rollout_config.calculate_log_probs),
            weights=client.weights,
            reward_keys=(*self._reward_extra_keys, *added),
        )


class GatedToolAgentLoop(GroupGateMixin, ToolAgentLoop):  # type: ignore[misc]
    """verl's tool loop with a gate. An action is the tool calls of a turn, read by verl's own parser.

    Raises:
        ConfigError: the agent loop file has a setting that neither the gate nor verl's tool loop knows.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        _refuse_unknown(named)
        super().__init__(*args, **named)

    async def action_of(self, tokens: list[int], text: str) -> str:
        """See `GroupGateMixin`."""
        content, calls = await self.tool_parser.extract_tool_calls(
            tokens, [tool.tool_schema for tool in self.tools.values()]
        )
        if not calls:
            return await super().action_of(tokens, text)
        told = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
        message = {"role": "assistant", "content": content or "", "tool_calls": told}
        return from_message(message, self.action_options)


def _refuse_unknown(named: Mapping[str, Any]) -> None:
    """Agent loops take any name and pass over it, so that a typing error would go unnoticed."""
    settings = (*_GATE, "actions", "reward_extra_keys")
    known = {"name", *settings, *inspect.signature(AgentLoopBase.__init__).parameters}
    for name, value in named.items():
        if name not in known and isinstance(value, str | int | float):  # what a file holds; verl adds objects
            raise ConfigError(
                f"agent loop file: {name} is no setting of the gate ({', '.join(settings)}); tau, start_step "
                "and the like stand in the gate file"
            )


def filter_metric(config: Any) -> str | None:
    """What verl compares to find groups without a spread, to evict them; None: it evicts none."""
    filters = config.algorithm.get("filter_groups") or {}
    trainer = config.trainer
    if not (trainer.get("use_v1") and filters.get("enable")):
        return None
    sampler = (trainer.get("v1") or {}).get("sampler") or {}
    own = (sampler.get("custom_sampler") or {}).get("path")
    return None if own else str(filters.get("metric"))


def _last(output: Any) -> Any:
    """The output that verl scores, of one or several."""
    return output[-1] if isinstance(output, list) else output


def _replace_last(output: Any, last: Any) -> Any:
    return [*output[:-1], last] if isinstance(output, list) else last
