"""verl's own workers as actors of Ray, with a window into them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import ray
from transformers import AutoTokenizer
from verl.experimental.agent_loop import AgentLoopWorker
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl_world import Servers

from selective_rollout.integrations.verl import output

Rewards = ray.remote(num_cpus=0.1)(RewardLoopWorker)


class _Seen:
    """What is the same in both workers."""

    llm_client: Servers

    async def asked(self) -> Counter[str]:
        """Requests so far, once the gate has heard of all rewards."""
        await asyncio.gather(*output._SCORING)
        return self.llm_client.asked


@ray.remote(num_cpus=0.1)
class Worker(_Seen, AgentLoopWorker):  # type: ignore[misc]
    pass


@ray.remote(num_cpus=0.1)
class QueueWorker(_Seen, AgentLoopWorkerTQ.__ray_metadata__.modified_class):  # type: ignore[misc]
    pass


class QueueManager(AgentLoopManagerTQ):  # type: ignore[misc]
    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.agent_loop_workers_class = QueueWorker


def servers(config: Any, **options: Any) -> Servers:
    return Servers(AutoTokenizer.from_pretrained(config.actor_rollout_ref.model.path), **options)
