"""A tiny Llama that trains in milliseconds, its tokenizer, and a trainer around them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("trl", reason="make test-trainers installs trl into its own environment")

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
import trl
from datasets import Dataset
from tests.trainers.marking import mark
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from selective_rollout.engine.training import TrainingGate
from selective_rollout.env.base import Observation, StepResult
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.trl import GatedGRPOTrainer, GroupGateMixin
from selective_rollout.types import Task

_OTHERS_WARNINGS = (
    "ignore::FutureWarning",
    "ignore::DeprecationWarning",
    "ignore:.*pin_memory.*:UserWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items, Path(__file__).parent, _OTHERS_WARNINGS)


torch.set_num_threads(1)

_TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] or '' }}"
    "{% for c in m.get('tool_calls') or [] %}[{{ c['function']['name'] }}]{% endfor %}"
    "<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
_SPECIAL = ["<pad>", "<end>", "<user>", "<assistant>", "<system>", "<tool>", "<|im_start|>", "<|im_end|>"]


def make_tokenizer(end: str = "<end>") -> PreTrainedTokenizerFast:
    """One token per byte, and one for each mark of the chat templates."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(_SPECIAL)
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token=end)
    made.chat_template = _TEMPLATE
    made.padding_side = "left"
    return made


def save_model(folder: Path) -> Path:
    """The tiny model and its tokenizer, saved."""
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tiny model is."""
    return save_model(tmp_path_factory.mktemp("model"))


SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "num_generations": 4,
    "max_completion_length": 64,
    "max_grad_norm": 0.0,
    "learning_rate": 1e-2,
    "max_steps": 1,
    "logging_steps": 1,
    "report_to": [],
    "save_strategy": "no",
    "use_cpu": True,
    "disable_tqdm": True,
    "bf16": False,
}


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Arguments of a `GRPOConfig` for a tiny run."""
    return lambda **changes: {**SETTINGS, "output_dir": str(tmp_path / "run"), **changes}


@pytest.fixture
def make_trainer(model_folder: Path, tmp_path: Path) -> Callable[..., GatedGRPOTrainer]:
    """A trainer of the tiny model; keyword arguments in `config` go to `GRPOConfig`."""

    def make(
        reward_funcs: Any,
        dataset: Dataset | None,
        *,
        gate: TrainingGate | None = None,
        config: dict[str, Any] | None = None,
        trainer: Any = GatedGRPOTrainer,
        **options: Any,
    ) -> Any:
        settings = {**SETTINGS, "output_dir": str(tmp_path / "run"), **(config or {})}
        if trainer is GatedGRPOTrainer or gate is not None:
            options["gate"] = gate if gate is not None else TrainingGate(GateConfig(start_step=2, tau=0.5))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=UserWarning, module="trl|transformers|accelerate")
            return trainer(
                model=str(model_folder),
                reward_funcs=reward_funcs,
                args=GRPOConfig(**settings),
                train_dataset=dataset,
                **options,
            )

    return make


class Scripted:
    """A world of `length` steps that tells its member's number and rewards by the task's column `rewards`."""

    made: ClassVar[list[Scripted]] = []

    def __init__(self, task: Task, rollout: int) -> None:
        self.task, self.rollout, self.steps, self.closed = task, rollout, 0, False
        Scripted.made.append(self)

    def start(self) -> Observation:
        return Observation(f"m{self.rollout}")

    def step(self, action: str) -> StepResult:
        self.steps += 1
        rewards = self.task.metadata["rewards"]
        done = self.steps == self.task.metadata["length"]
        return StepResult("ok", reward=float(rewards[self.rollout]), terminated=done)

    def close(self) -> None:
        self.closed = True


class Speaker(GRPOTrainer):  # type: ignore[misc]
    """Says the same thing whenever it is asked the same: everybody alike on tasks marked "=", else not."""

    turns = 0

    def _generate_single_turn(self, prompt_ids: list[list[int]], *others: Any, **options: Any) -> Any:
        self.turns += len(prompt_ids)
        return [self._tokenizer.encode(self._says(self._tokenizer.decode(ids))) for ids in prompt_ids], None

    @staticmethod
    def _says(heard: str) -> str:
        turn = heard.count("ok")
        return f"go {turn} =" if "=" in heard.split(":")[0] else f"go {turn} {heard.split('m')[1][0]}"


class ScriptedTrainer(GroupGateMixin, Speaker):
    """With a gate."""


def make_dataset(*tasks: tuple[str, list[int]], length: int = 4) -> Dataset:
    """Tasks with their members' rewards; those marked "=" make everybody act alike."""
    return Dataset.from_dict(
        {
            "prompt": [f"{name}:" for name, _ in tasks],
            "rewards": [rewards for _, rewards in tasks],
            "length": [length] * len(tasks),
        }
    )


@pytest.fixture
def dataset() -> Callable[..., Dataset]:
    """Makes a dataset of tasks, see `make_dataset`."""
    return make_dataset


@pytest.fixture
def scripted() -> type[ScriptedTrainer]:
    """A trainer class that needs no model to speak; it learns for real."""
    Scripted.made.clear()
    return ScriptedTrainer


@pytest.fixture
def world() -> type[Scripted]:
    """The environment that goes with it."""
    return Scripted


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """The tiny model's tokenizer."""
    return make_tokenizer()


@pytest.fixture
def tool_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer whose chat template the trainer can parse tool calls of."""
    made = make_tokenizer("<|im_end|>")
    made.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text()
    return made


class Gradients(TrainerCallback):  # type: ignore[misc]
    """Keeps the gradient of every optimizer step, as one vector."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **more: Any
    ) -> None:
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        self.seen.append(torch.cat([part.detach().flatten().double() for part in parts]))


@pytest.fixture
def gradients() -> type[Gradients]:
    """A callback class that keeps gradients."""
    return Gradients
