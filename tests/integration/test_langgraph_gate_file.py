"""A gate file instead of a rule, in both integrations: what it covers is enforced, all else is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from tests.certified import claim_of

from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.rule import UncertifiedGateWarning, WorkloadWarning
from selective_rollout.errors import ConfigError
from selective_rollout.gate.certificate import Certificate, Stratum, Workload
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.gate_file import write_gate_file
from selective_rollout.gate.toml_text import to_toml
from selective_rollout.integrations.langgraph import GroupResult, GroupRunner, build_graph
from selective_rollout.testing import ScriptedPolicy, TutorialBrain

G = 4
STEPS = 5
RULE = GateConfig(start_step=2, tau=0.2, outcome="survivor")
ENFORCE = RunConfig(group_size=G, mode="enforce")
USAGE: Any = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}


def certificate(**changes: Any) -> Certificate:
    return claim_of(RULE, **changes)


@pytest.fixture
def gate_file(tmp_path: Path) -> Path:
    write_gate_file(tmp_path / "gate.toml", certificate())
    return tmp_path / "gate.toml"


def run_graph(**options: Any) -> Any:
    context = options.pop("context", None)
    metadata = options.pop("metadata", {})
    graph = build_graph(ScriptedPolicy(TutorialBrain(1.0, steps=STEPS)), **{"config": ENFORCE, **options})
    state = graph.invoke({"prompt": "q", "group_id": "g", "metadata": metadata}, context=context)
    return GroupResult.from_state(state)


def run_runner(**options: Any) -> Any:
    metadata = options.pop("metadata", {})
    return GroupRunner(agent(), **{"config": ENFORCE, **options}).invoke(
        {"messages": [("user", "q")]}, {"configurable": {"thread_id": "g"}}, metadata=metadata
    )


def agent() -> Any:
    def model(state: MessagesState) -> dict[str, Any]:
        step = sum(message.type == "ai" for message in state["messages"]) + 1
        if step > STEPS:
            return {"messages": [AIMessage("desk", usage_metadata=USAGE)]}
        call = {"name": f"look{step}", "args": {}, "id": f"c{step}"}
        return {"messages": [AIMessage("", tool_calls=[call], usage_metadata=USAGE)]}

    def tools(state: MessagesState) -> dict[str, Any]:
        (call,) = state["messages"][-1].tool_calls  # type: ignore[union-attr]
        return {"messages": [ToolMessage("ok", tool_call_id=call["id"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", tools)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", lambda state: "tools" if state["messages"][-1].tool_calls else END)
    builder.add_edge("tools", "model")
    return builder.compile()


BOTH = pytest.mark.parametrize("run", [run_graph, run_runner], ids=["graph", "runner"])
Run = Callable[..., Any]


@BOTH
def test_the_rule_of_the_file_is_enforced_without_a_warning(run: Run, gate_file: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(gate=str(gate_file)).cut_at == RULE.start_step
        assert run(gate=gate_file).cut_at == RULE.start_step


@BOTH
def test_a_rule_that_cuts_fewer_groups_is_covered(run: Run, gate_file: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(gate=replace(RULE, tau=0.1), certified=gate_file).cut_at == RULE.start_step


@BOTH
def test_any_other_rule_is_refused_by_the_keys_that_differ(run: Run, gate_file: Path) -> None:
    wider = replace(RULE, tau=0.3, start_step=3, padding="none")
    with pytest.raises(ConfigError, match=r"padding: .*start_step, check_every: .*tau: 0.3 is above"):
        run(gate=wider, certified=gate_file)


@BOTH
def test_a_file_that_was_edited_is_refused(run: Run, gate_file: Path) -> None:
    gate_file.write_text(gate_file.read_text().replace("tau = 0.2", "tau = 0.4"))
    with pytest.raises(ConfigError, match=r"gate\.toml: .* does not match its hash"):
        run(gate=gate_file)


@BOTH
def test_a_file_that_is_not_there_is_named(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: cannot read the gate"):
        run(gate=tmp_path / "missing.toml")


@BOTH
def test_a_rule_without_a_certificate_warns_once_a_run(run: Run, tmp_path: Path) -> None:
    rule = {name: value for name, value in RULE.to_dict().items() if value is not None}
    (tmp_path / "rule.toml").write_text(to_toml({"gate": rule}))
    with pytest.warns(UncertifiedGateWarning) as told:
        assert run(gate=tmp_path / "rule.toml").cut_at == RULE.start_step
    assert len(told) == 1


@BOTH
def test_another_workload_is_told(run: Run, tmp_path: Path) -> None:
    write_gate_file(tmp_path / "gate.toml", certificate(workload=Workload(group_size=16)))
    with pytest.warns(WorkloadWarning, match="group_size: running 4, certified on 16"):
        run(gate=tmp_path / "gate.toml")


@BOTH
def test_each_stratum_has_its_own_tau(run: Run, tmp_path: Path) -> None:
    counts: dict[str, Any] = {"n_signal": 60, "false_cuts": 0, "cuts": 20, "groups": 90}
    strata = (Stratum("easy", 0.2, **counts), Stratum("hard", 0.0, **counts))
    claim = certificate(strata=strata, stratum_key="level", n_signal=120, groups=180, cuts=40)
    write_gate_file(tmp_path / "gate.toml", claim)
    assert run(gate=tmp_path / "gate.toml", metadata={"level": "easy"}).cut_at == RULE.start_step
    hard = run(gate=tmp_path / "gate.toml", metadata={"level": "hard"})
    assert (hard.cut_at, hard.decisions[0].tau) == (None, 0.0)


def test_a_context_may_narrow_the_rule_and_not_widen_it(gate_file: Path) -> None:
    assert run_graph(gate=gate_file, context={"tau": 0.1}).cut_at == RULE.start_step
    with pytest.raises(ConfigError, match="context: the certificate does not cover this rule: tau: 0.3"):
        run_graph(gate=gate_file, context={"tau": 0.3})
    assert run_graph(gate=gate_file, context={"tau": 0.3, "mode": "observe"}).would_cut_at == RULE.start_step
