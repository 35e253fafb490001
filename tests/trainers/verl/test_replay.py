"""The whole way of verl's default trainer: workers, reward loop, queue and the replay buffer that filters."""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray
import transfer_queue as tq
from verl.trainer.ppo.v1.replay_buffer import DAPO_FILTERED_REWARD_COUNTS_KEY, ReplayBuffer
from verl.utils.tensordict_utils import get_tensordict
from verl_actors import QueueManager, Rewards, servers
from verl_world import SIZE, TURNS, row

from selective_rollout.integrations.verl import STAND_IN_REWARD

ALL = SIZE * TURNS
AT_THE_CHECK = SIZE * 2


class Training:
    """As much of verl's trainer as submits prompts; see `PPOTrainer._submit_batch_to_rollout`."""

    def __init__(self, config: Any, tasks: list[str]) -> None:
        self.config = config
        self.rewards = Rewards.remote(config)
        self.manager = QueueManager.create(config, servers(config), reward_loop_worker_handles=[self.rewards])
        self.tasks = iter(tasks)
        self.uids: dict[str, str] = {}
        self.buffer = ReplayBuffer(
            trainer_mode="sync",
            trainer_config=config.trainer.v1.get("sync", {}),
            max_off_policy_threshold=None,
            max_off_policy_strategy="drop",
            sampler_kwargs=config.trainer.v1.sampler.sampler_kwargs,
            poll_interval=0.05,
            refill_fn=self.submit,
            filter_groups_metric="reward",
            train_batch_size=2,
            gen_batch_size=1,
        )

    def submit(self, count: int) -> None:
        rows = [{**row(task), "uid": str(uuid.uuid4())} for task in itertools.islice(self.tasks, count)]
        self.uids.update((each["uid"], each["raw_prompt"][0]["content"]) for each in rows)
        tq.kv_batch_put(
            keys=[each["uid"] for each in rows],
            partition_id="train",
            tags=[{"is_prompt": True, "status": "pending", "global_steps": 1} for _ in rows],
        )
        columns = {name: [each[name] for each in rows] for name in rows[0]}
        self.manager.generate_sequences(get_tensordict(columns, {"global_steps": 1}))

    def asked(self) -> Counter[str]:
        return sum(ray.get([w.asked.remote() for w in self.manager.agent_loop_workers]), Counter())

    def close(self) -> None:
        for actor in (*self.manager.agent_loop_workers, self.rewards):
            ray.kill(actor)


@pytest.fixture
def training(cluster: None, config: Callable[..., Any]) -> Iterator[Callable[..., Training]]:
    made: list[Training] = []

    def make(tasks: list[str], **settings: Any) -> Training:
        settings = config(
            "transfer_queue.backend.SimpleStorage.num_data_storage_units=1", shared="true", **settings
        )
        tq.init(settings.transfer_queue)
        made.append(Training(settings, tasks))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_cut_groups_are_evicted_and_replaced_and_rewards_reach_the_gate(
    training: Callable[..., Training], started: Callable[[str], Any]
) -> None:
    gate = started("evicting")
    made = training(["a=", "b", "c=", "d", "e", "f", "g", "h"], actor="evicting")
    made.submit(2)
    batch, metrics = made.buffer.sample(global_steps=1, partition_id="train", batch_size=2)
    tasks = Counter(made.uids[key.split("_")[0]] for key in batch.keys)
    assert len(tasks) == 2
    assert set(tasks.values()) == {SIZE}
    assert not [task for task in tasks if "=" in task]
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["rm_scores"])
    assert Counter(float(each.sum()) for each in data["rm_scores"]) == {0.0: 6, 1.0: 2}
    evicted = metrics["training/filter_groups/evicted_samples"]
    assert metrics[DAPO_FILTERED_REWARD_COUNTS_KEY] == {STAND_IN_REWARD: evicted}
    asked = made.asked()
    for task, count in asked.items():
        if "=" in task:
            assert AT_THE_CHECK <= count < ALL  # how far members run ahead is the scheduler's
        else:
            assert count == ALL
    seen = ray.get(gate.metrics.remote())
    assert seen["gate/cut"] == evicted
    assert seen["gate/groups"] == len(asked)
    assert seen["gate/zero_advantage_share"] == 0.0  # rewards have come, and none were equal
