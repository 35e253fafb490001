"""Members of one group in several workers of Ray."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import ray

from selective_rollout.engine.training import GroupCut, TrainingGate
from selective_rollout.engine.training.remote import RemoteMember
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.ray_registry import ray_link

make_gate = partial(TrainingGate, GateConfig(start_step=2, tau=0.5), mode="enforce", certified=True)


@ray.remote(num_cpus=0.1)
class Worker:
    """Rolls out some members of groups."""

    async def ready(self) -> bool:
        return True

    async def rollouts(
        self, coordinator: str, group: str, members: list[int], *, alike: bool, pause_s: float
    ) -> list[tuple[bool, int]]:
        link = ray_link(coordinator)
        return list(
            await asyncio.gather(
                *(_rollout(link, group, member, alike=alike, pause_s=pause_s) for member in members)
            )
        )


async def _rollout(link: Any, group: str, rollout: int, *, alike: bool, pause_s: float) -> tuple[bool, int]:
    done = 0
    async with RemoteMember(link, group, rollout, 4, wait_s=0.5, patience_s=20.0) as member:
        try:
            async with member.guarded():
                for step in range(8):
                    await asyncio.sleep(pause_s)
                    done += 1
                    await member.step(f"go {step}" if alike else f"go {step} {rollout}")
                    if member.stopped:
                        break
            await member.finish(float(rollout))
        except GroupCut:
            pass
        return await member.kept(), done
