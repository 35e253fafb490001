"""Around the training step: settings, state over restarts, loggers, and TRL's private methods."""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trl
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.certified import claim_of
from trl import GRPOTrainer

from selective_rollout.engine.rule import AuditAlarmWarning
from selective_rollout.engine.training import TrainingGate
from selective_rollout.errors import ConfigError, GroupError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.gate_file import write_gate_file
from selective_rollout.gate.history import PromptHistory
from selective_rollout.gate.schedule import AuditedController, linear
from selective_rollout.integrations import trl as integration
from selective_rollout.integrations.trl import NotLosslessWarning, environment_reward, gated_rollout_func
from selective_rollout.integrations.trl.layout import require_layout
from selective_rollout.trace.reader import read_groups
from selective_rollout.trace.recorder import Recorder

RULE = GateConfig(start_step=2, tau=0.5)
MIXED_A, MIXED_B = ("a", [0, 1, 1, 0]), ("b", [1, 0, 0, 0])
FLAT_C, FLAT_D = ("c=", [1, 1, 1, 1]), ("d=", [0, 0, 0, 0])


def enforcing(rule: GateConfig | Path = RULE, **settings: Any) -> TrainingGate:
    certified = isinstance(rule, GateConfig)
    return TrainingGate(rule, mode="enforce", certified=certified, **settings)


@pytest.fixture
def make(make_trainer: Callable[..., Any], scripted: Any, world: Any, dataset: Any) -> Callable[..., Any]:
    def build(gate: TrainingGate, *tasks: tuple[str, list[int]], **options: Any) -> Any:
        config = {"gradient_accumulation_steps": 1, "shuffle_dataset": False, **options.pop("config", {})}
        return make_trainer(
            environment_reward,
            options.pop("data", None) or dataset(*(tasks or (MIXED_A, FLAT_C))),
            gate=gate,
            trainer=scripted,
            config=config,
            **{"rollout_func": gated_rollout_func(world), **options},
        )

    return build


def test_a_rollout_function_that_nobody_can_look_into_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match=r"use gated_rollout_func\(environment\)"):
        make(enforcing(), rollout_func=lambda prompts, trainer: {})


@pytest.mark.parametrize("shared", [{"vllm_mode": "server"}, {"vllm_tensor_parallel_size": 2}])
def test_processes_that_share_a_vllm_are_refused(make: Any, shared: dict[str, Any]) -> None:
    trainer = make(enforcing())
    trainer.use_vllm, trainer.vllm_mode, trainer.vllm_tensor_parallel_size = True, "colocate", 1
    require_layout(trainer)
    for name, value in shared.items():
        setattr(trainer, name, value)
    require_layout(trainer)
    trainer.accelerator = SimpleNamespace(num_processes=2)
    with pytest.raises(ConfigError, match="several processes ask one vLLM"):
        require_layout(trainer)


def test_tools_and_a_rollout_function_are_refused_together(make: Any) -> None:
    trainer = make(enforcing())
    trainer.tools = [print]
    with pytest.raises(ConfigError, match="two loops"):
        require_layout(trainer)


@pytest.mark.parametrize("loss_type", ["dapo", "bnpo", "cispo", "vespo"])
def test_a_sampled_denominator_needs_a_loss_that_has_one(make: Any, loss_type: str) -> None:
    with pytest.raises(ConfigError, match=f"{loss_type} divides by tokens"):
        make(enforcing(), denominator="sampled", config={"loss_type": loss_type})


def test_a_sampled_denominator_needs_the_prompts_as_they_were_drawn(make: Any, world: Any) -> None:
    sampled = {"denominator": "sampled", "config": {"loss_type": "grpo"}}
    with pytest.raises(ConfigError, match="cannot be unbiased with skip_probability or refill"):
        make(enforcing(), rollout_func=gated_rollout_func(world, refill=1), **sampled)
    with pytest.raises(ConfigError, match="cannot be unbiased with skip_probability or refill"):
        make(enforcing(history=PromptHistory(), skip_probability=0.5, skip_last=2), **sampled)


def test_a_sampled_denominator_needs_groups_that_do_not_depend_on_each_other(make: Any) -> None:
    with pytest.raises(ConfigError, match="cannot be unbiased with scale_rewards"):
        make(enforcing(), denominator="sampled", config={"loss_type": "grpo", "scale_rewards": "batch"})


@pytest.mark.parametrize(
    ("config", "kind", "reason"),
    [
        ({"beta": 0.04}, "lossless_pg", "beta=0.04"),
        ({"entropy_coef": 0.01}, "lossless_pg", "entropy bonus"),
        ({"scale_rewards": "batch"}, "rescaled", "standard deviation"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "rescaled", "scaled over the batch"),
        ({"top_entropy_quantile": 0.5}, "rescaled", "quantile is over kept tokens"),
    ],
)
def test_terms_that_a_drop_is_not_lossless_for_are_said(
    make: Any, config: Any, kind: str, reason: str
) -> None:
    with pytest.warns(NotLosslessWarning, match=reason):
        assert make(enforcing(), config=config).lossless.kind == kind
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotLosslessWarning)
        assert make(enforcing()).lossless.kind == "lossless"
        make(TrainingGate(RULE), config=config)


def test_a_task_column_must_be_there_and_agree_with_the_groups(make: Any, dataset: Any) -> None:
    with pytest.raises(ConfigError, match="no column 'task'"):
        make(enforcing(), task_column="task").train()
    mixed_up = dataset(MIXED_A, FLAT_C)
    trainer = make(enforcing(), data=mixed_up, task_column="prompt")
    rows = [dict(mixed_up[0])] * 3 + [dict(mixed_up[1])]
    trainer.model.train()
    with pytest.raises(GroupError, match="belong to 2 tasks"):
        trainer._generate_and_score_completions(rows)


def test_an_iterable_dataset_must_name_its_tasks(make: Any, dataset: Any) -> None:
    rows = dataset(MIXED_A, FLAT_C)
    with pytest.raises(ConfigError, match="an iterable dataset needs task_column"):
        make(enforcing(), data=rows.to_iterable_dataset())
    gate = enforcing(history=PromptHistory())
    make(gate, data=rows.to_iterable_dataset(), task_column="prompt").train()
    assert gate.history is not None
    assert list(gate.history.to_dict()["tasks"]) == ["a:"]


def test_a_restart_goes_on_where_the_checkpoint_was(make: Any, tmp_path: Path) -> None:
    def gate() -> TrainingGate:
        return enforcing(
            history=PromptHistory(),
            audit_rate=0.5,
            schedule=AuditedController(target=0.1, ceiling=0.5, gain=0.01),
        )

    tasks = (MIXED_A, FLAT_C, MIXED_B, ("d=", [0, 0, 1, 0]))
    config = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    straight = gate()
    make(straight, *tasks, config=config).train()
    resumed = gate()
    make(resumed, *tasks, config=config).train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert resumed.begun == 4
    assert resumed.meter.groups == straight.meter.groups == 8
    assert resumed.state_dict() == straight.state_dict()


def test_a_checkpoint_of_another_rule_gives_the_history_alone(make: Any, tmp_path: Path) -> None:
    config = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    make(TrainingGate(RULE, history=PromptHistory()), config=config).train()
    other = enforcing(GateConfig(start_step=3, tau=0.5), history=PromptHistory())
    with pytest.warns(UserWarning, match="the gate's totals and alarm start anew"):
        make(other, config=config).train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    assert other.meter.groups == 2
    assert other.history is not None
    assert other.history.last("0", 8) == (0, 1, 1, 0, 0, 1, 1, 0)


def test_a_trace_holds_the_groups_of_a_restart_beside_those_of_before(make: Any, tmp_path: Path) -> None:
    config = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    for checkpoint in (None, str(tmp_path / "run" / "checkpoint-1")):
        with Recorder(tmp_path / "trace") as recorder:
            make(enforcing(recorder=recorder), config=config).train(resume_from_checkpoint=checkpoint)
    groups = list(read_groups(tmp_path / "trace"))
    assert sorted(each.group.id.split("@")[0] for each in groups) == [
        "step0.0-rank0-0",
        "step0.0-rank0-1",
        *["step1.0-rank0-0"] * 2,
        *["step1.0-rank0-1"] * 2,
    ]


def test_a_trainer_that_trains_twice_names_its_groups_anew(make: Any, tmp_path: Path) -> None:
    with Recorder(tmp_path / "trace") as recorder:
        trainer = make(enforcing(recorder=recorder))
        trainer.train()
        trainer.train()
    assert len(list(read_groups(tmp_path / "trace"))) == 4


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"rollout_func": gated_rollout_func(print, max_steps=2)}, "max_steps=2"),
        ({"rollout_func": None}, "without tools or environments a rollout is one turn"),
    ],
)
def test_a_gate_that_can_never_fire_is_told_of(make: Any, options: dict[str, Any], limit: str) -> None:
    with pytest.warns(UserWarning, match=f"{limit}.*it can never fire"):
        make(enforcing(), **options)


def test_prompts_can_be_skipped_where_a_rollout_is_one_turn(make: Any) -> None:
    skipping = enforcing(history=PromptHistory(), skip_probability=0.5, skip_last=4)
    make(skipping, rollout_func=None)


def test_anything_but_a_training_gate_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match=r"gate must be a TrainingGate\(...\), not str"):
        make("gate.toml")


def test_the_trainer_tells_how_far_it_is_and_which_policy_it_has(make: Any) -> None:
    taus: list[float] = []
    gate = enforcing(schedule=linear(0.5, 0.1), history=PromptHistory())
    trainer = make(gate, config={"max_steps": 4})
    trainer.train()
    taus = [
        entry["gate/tau"] for entry in trainer.state.log_history if "gate/tau" in entry and "loss" in entry
    ]
    assert taus == pytest.approx([0.5, 0.4, 0.3, 0.2])
    assert gate.history is not None
    versions = [visit[0] for visit in gate.history.to_dict()["tasks"]["0"]]
    assert versions == [0, 1, 2, 3]


def test_a_prompt_is_cut_only_once_its_own_past_agrees(make: Any) -> None:
    gate = enforcing(GateConfig(start_step=2, tau=0.5, history_mixed=4), history=PromptHistory())
    trainer = make(gate, FLAT_C, ("d=", [0, 1, 0, 0]), config={"max_steps": 3})
    trainer.train()
    cuts = [entry["gate/cut"] for entry in trainer.state.log_history if "loss" in entry]
    assert cuts == [0, 1, 2]
    assert gate.meter.signal == 3


def test_an_alarm_turns_the_gate_off_in_the_middle_of_training(make: Any, tmp_path: Path) -> None:
    certificate = claim_of(RULE)
    write_gate_file(tmp_path / "gate.toml", certificate)
    gate = enforcing(tmp_path / "gate.toml", audit_rate=0.3)
    wrong = [(name, [0, 1, 0, 1]) for name in ("c=", "d=", "e=", "f=")]
    trainer = make(gate, *wrong, config={"max_steps": 12})
    with pytest.warns(AuditAlarmWarning, match="the gate is off from here on"):
        trainer.train()
    switched = [entry["gate/enforcing"] for entry in trainer.state.log_history if "loss" in entry]
    assert (switched[0], switched[-1]) == (1.0, 0.0)


def test_the_gate_s_numbers_reach_tensorboard(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    gate = enforcing(audit_rate=0.5, seed=1)
    tasks = (MIXED_A, FLAT_C, MIXED_B, FLAT_D)
    make(gate, *tasks, config={"max_steps": 4, "report_to": ["tensorboard"]}).train()
    board = EventAccumulator(str(tmp_path / "board")).Reload()
    written = {tag.removeprefix("train/"): board.Scalars(tag)[-1].value for tag in board.Tags()["scalars"]}
    expected = gate.meter.metrics()
    assert {name: written[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    unknown = enforcing()
    trainer = make(unknown, *tasks, config={"max_steps": 2})
    trainer.train()
    assert "gate/steps_avoided" not in trainer.state.log_history[1]


EXPECTED = {
    "_generate_and_score_completions": "inputs",
    "_generate": "prompts",
    "_generate_single_turn": "prompt_ids images multimodal_fields num_generations has_tool_images",
    "_tool_call_loop": "prompts prompt_ids completion_ids completions logprobs images multimodal_fields",
    "_calculate_rewards": "inputs prompts completions completion_ids_list",
    "_prepare_inputs": "generation_batch",
    "training_step": "model inputs num_items_in_batch",
    "_save_checkpoint": "model trial",
    "_load_optimizer_and_scheduler": "checkpoint",
    "_set_signature_columns_if_needed": "",
    "log": "logs start_time",
}
"""Their parameters after self."""


@pytest.mark.parametrize("name", EXPECTED)
def test_the_private_methods_are_what_they_were(name: str) -> None:
    assert list(inspect.signature(getattr(GRPOTrainer, name)).parameters)[1:] == EXPECTED[name].split()


def test_the_version_is_the_one_the_mixin_was_written_for() -> None:
    assert trl.__version__.startswith("1.16.")


def test_another_version_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trl, "__version__", "1.17.1")
    with pytest.warns(UserWarning, match="private methods of TRL 1.16, and this is 1.17.1"):
        importlib.reload(integration)
