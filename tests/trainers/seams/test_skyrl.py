"""SkyRL's real generator, environments and filters, around a scripted inference engine."""

from __future__ import annotations

import sys
import typing
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from needs import need

need("skyrl")

if sys.version_info < (3, 12):  # SkyRL is written for 3.12; this is all it takes of it here
    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the frameworks, of each other
    import skyrl_gym
    from skyrl.train.config import GeneratorConfig, SkyRLGymConfig
    from skyrl.train.fully_async_trainer import FullyAsyncRayPPOTrainer
    from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
    from skyrl.train.generators.utils import prepare_generator_input
    from skyrl.train.trainer import RayPPOTrainer
    from skyrl.train.utils.trainer_utils import handle_dynamic_sampling
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
    from skyrl_gym.envs.registration import registry


class Engine:
    """What generates."""

    weight_version = None

    def __init__(self, world: Any, tokenizer: Any) -> None:
        self.world, self.tokenizer = world, tokenizer

    async def generate(self, request: Any, model: str | None = None) -> dict[str, Any]:
        heard = self.tokenizer.decode(request["prompt_token_ids"][0])
        rollout = request["session_ids"][0].rpartition("_")[2]
        said = await self.world.say(heard.replace("#", f"#{rollout}:"))
        ids = [*self.tokenizer.encode(said), 0]
        return {"responses": [said], "response_ids": [ids], "stop_reasons": ["stop"]}

    async def finish_session(self, session: Any) -> None:
        """Nothing is held."""


@pytest.fixture
def talk(world: Any) -> type[BaseTextEnv]:
    """The reader's own environment; in a task with "?" that of rollout 1 breaks."""

    class Talk(BaseTextEnv):
        def __init__(self, env_config: Any = None, extras: Any = None) -> None:
            super().__init__()
            self.extras = extras

        def step(self, action: str) -> BaseTextEnvStepOutput:
            self.turns += 1
            if "?" in self.extras["task"] and action.endswith(" 1"):
                raise OSError("the tool is gone")
            done = self.turns == world.turns
            first = self.turns == 1 and action == "go 0 0"
            said = [] if done else [{"role": "user", "content": "ok"}]
            return BaseTextEnvStepOutput(observations=said, reward=float(first), done=done, metadata={})

    return Talk


@pytest.fixture
def roll_out(world: Any, tokenizer: Any) -> Iterator[Callable[..., Any]]:
    """Has SkyRL's generator, or the page's, sample tasks as its trainers do."""

    async def sample(made: type, env: type, tasks: list[str], phase: Any = "train") -> tuple[Any, list[str]]:
        registry.pop("talk", None)
        skyrl_gym.register(id="talk", entry_point=env)
        prompts = [
            {
                "prompt": [{"role": "user", "content": f"{task}#"}],
                "env_class": "talk",
                "env_extras": {"task": task},
                "uid": task,
            }
            for task in tasks
        ]
        settings = GeneratorConfig(max_turns=world.turns, max_input_length=4000)
        gym = SkyRLGymConfig(max_env_workers=0)
        generator = made(settings, gym, Engine(world, tokenizer), tokenizer)
        asked, uids = prepare_generator_input(prompts, world.size, None, "talk", phase, global_step=1)
        return await generator.generate(asked, disable_tqdm=True), uids

    yield sample
    registry.pop("talk", None)


TIMES = ("trajectory_generation_times", "trajectory_time_splits", "rollout_metrics")


def untimed(out: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in out.items() if name not in TIMES}


@pytest.mark.parametrize("mode", ["observe", "audit", "evaluation"])
async def test_what_is_not_cut_comes_out_as_without_a_gate(
    sketch: Any, roll_out: Any, talk: Any, gate_of: Any, world: Any, mode: str
) -> None:
    gate = gate_of("observe" if mode == "observe" else "enforce", audit_rate=float(mode == "audit"))
    phase = "eval" if mode == "evaluation" else "train"
    tasks = ["same=", "apart"]
    expected, _ = await roll_out(SkyRLGymGenerator, talk, tasks, phase)
    module = sketch("skyrl", gate, MyEnv=talk)
    out, _ = await roll_out(module.GatedGenerator, module.GatedEnv, tasks, phase)
    assert untimed(out) == untimed(expected)
    assert world.asked == dict.fromkeys(tasks, 2 * world.all)
    assert (gate.meter.groups, gate.meter.would_cut) == ((0, 0) if phase == "eval" else (2, 1))


async def test_a_cut_group_has_equal_rewards(
    sketch: Any, roll_out: Any, talk: Any, gate_of: Any, world: Any
) -> None:
    gate = gate_of()
    module = sketch("skyrl", gate, MyEnv=talk)
    out, _ = await roll_out(module.GatedGenerator, module.GatedEnv, ["same=", "apart"])
    earned = [sum(each) for each in out["rewards"]]
    assert dict(world.asked) == {"same=": world.cut, "apart": world.all}
    assert earned == [0, 0, 0, 0, 1, 0, 0, 0]
    assert [len(each) for each in out["rewards"]] == [len(each) for each in out["response_ids"]]
    assert all(sum(mask) > 0 for mask in out["loss_masks"])
    assert gate.meter.cut == 1


@pytest.fixture
async def batch(sketch: Any, roll_out: Any, talk: Any, gate_of: Any) -> tuple[Any, list[str]]:
    """A cut group and one that was kept."""
    module = sketch("skyrl", gate_of(), MyEnv=talk)
    out, uids = await roll_out(module.GatedGenerator, module.GatedEnv, ["same=", "apart"])
    return out, uids


@pytest.fixture
def earning(talk: Any) -> Any:
    """The same environment, but one rollout earns 1 with each step, whatever it does."""

    class Earning(talk):  # type: ignore[misc]
        made = 0

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.first = float(Earning.made == 0)
            Earning.made += 1

        def step(self, action: str) -> Any:
            return {**super().step(action), "reward": self.first}

    return Earning


async def test_what_was_earned_before_the_cut_does_not_count(
    sketch: Any, roll_out: Any, earning: Any, gate_of: Any
) -> None:
    module = sketch("skyrl", gate_of(), MyEnv=earning)
    out, _ = await roll_out(module.GatedGenerator, module.GatedEnv, ["same="])
    assert [sum(each) for each in out["rewards"]] == [0.0] * 4


async def test_rewards_at_the_check_speak_against_a_cut(
    sketch: Any, roll_out: Any, earning: Any, gate_of: Any, world: Any
) -> None:
    world.turns = 2
    gate = gate_of()
    module = sketch("skyrl", gate, MyEnv=earning)
    out, _ = await roll_out(module.GatedGenerator, module.GatedEnv, ["same="])
    assert sorted(sum(each) for each in out["rewards"]) == [0.0, 0.0, 0.0, 2.0]
    assert gate.meter.cut == 0


async def test_dynamic_sampling_takes_it_out_of_the_batch(batch: Any, world: Any) -> None:
    out, uids = batch
    settings = {"type": "filter", "train_batch_size": 1, "n_samples_per_prompt": world.size}
    kept, kept_uids, more, _ = handle_dynamic_sampling(out, uids, settings, {"sample_batch_count": 1})
    assert kept_uids == ["apart"] * world.size
    assert len(kept["response_ids"]) == world.size
    assert not more


def trainer_with(**settings: Any) -> SimpleNamespace:
    algorithm = SimpleNamespace(zero_variance_filter=True, zero_variance_filter_tol=1e-6)
    generator = SimpleNamespace(
        step_wise_trajectories=False, merge_stepwise_output=False, n_samples_per_prompt=4
    )
    config = SimpleNamespace(generator=generator, trainer=SimpleNamespace(algorithm=algorithm))
    return SimpleNamespace(cfg=config, all_metrics={})


async def test_the_filter_for_zero_variance_alone_does_nothing(batch: Any) -> None:
    out, uids = batch
    masks = [list(mask) for mask in out["loss_masks"]]
    trained, _ = RayPPOTrainer.postprocess_generator_output(trainer_with(), out, uids)
    assert trained["loss_masks"] == masks


@pytest.mark.parametrize(("masked", "kept"), [(False, False), (True, True)])
async def test_asynchronous_training_drops_it_unless_it_is_masked(
    batch: Any, masked: bool, kept: bool
) -> None:
    out, _ = batch
    half = {name: value[:4] for name, value in out.items() if isinstance(value, list)}
    if masked:
        half["loss_masks"] = [[0] * len(mask) for mask in half["loss_masks"]]
    group = SimpleNamespace(generator_output=half, uid="same=")
    assert FullyAsyncRayPPOTrainer._should_keep_group(trainer_with(), group) is kept


async def test_a_broken_environment_ends_the_batch_as_before(
    sketch: Any, roll_out: Any, talk: Any, gate_of: Any
) -> None:
    gate = gate_of()
    module = sketch("skyrl", gate, MyEnv=talk)
    with pytest.raises(OSError, match="the tool is gone"):
        await roll_out(module.GatedGenerator, module.GatedEnv, ["bad?"])
    assert (gate.meter.groups, gate.meter.cut) == (1, 0)


def test_steps_run_in_threads_by_default() -> None:
    assert SkyRLGymConfig().max_env_workers == 32
