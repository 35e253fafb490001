"""The coordinator of `engine.training.remote` as a small HTTP service on loopback, for workers without Ray.

async with LoopbackService(Coordinator(TrainingGate("gate.toml", mode="enforce"))) as service:
    ... hand service.address and service.token to the workers of this machine

link = loopback_link(address, token)                                    # in each worker
async with RemoteMember(link, group_id, rollout, size) as member:
    async with member.guarded():
        ...
"""

from selective_rollout.engine.training.loopback.link import loopback_link
from selective_rollout.engine.training.loopback.service import LoopbackService

__all__ = ["LoopbackService", "loopback_link"]
