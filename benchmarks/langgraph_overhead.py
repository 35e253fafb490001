"""What a gated group costs beside the agents in it: 64 rollouts of 20 steps, with a model that takes no time.

Three ways through the same work, in one process: the agents alone (64 times `ainvoke`), the agents under a
`GroupRunner`, and the graph of `build_graph`. The milliseconds are this machine's, in processor time of the
whole process; what is held is the runner's ratio to the agents alone, best of a few repeats taken in turns,
and the number of model calls, which must be the same.

    python benchmarks/langgraph_overhead.py [--json]

Exits 1 if a bar is missed. Takes about a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import END, START, MessagesState, StateGraph

from selective_rollout.engine.config import RunConfig
from selective_rollout.gate.config import GateConfig
from selective_rollout.integrations.langgraph import GroupRunner, build_graph
from selective_rollout.policy.base import Policy
from selective_rollout.testing import ScriptedPolicy, TutorialBrain

ROLLOUTS = 64
STEPS = 20
REPEATS = 3
AT_MOST = 3.0
"""Times the agents alone."""
PROMPT: dict[str, Any] = {"messages": [("user", "Where is the mug?")]}
GATE = GateConfig(start_step=10, tau=0.0)
CONFIG = RunConfig(group_size=ROLLOUTS, mode="enforce", max_steps=STEPS, concurrency=ROLLOUTS)


class Agent:
    """A tool agent whose model answers at once, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        builder = StateGraph(MessagesState)
        builder.add_node("model", self._model)
        builder.add_node("tools", self._tools)
        builder.add_edge(START, "model")
        builder.add_conditional_edges("model", lambda state: "tools" if _asks(state) else END)
        builder.add_edge("tools", "model")
        self.graph: Any = builder.compile()

    async def _model(self, state: MessagesState) -> dict[str, Any]:
        self.calls += 1
        step = sum(message.type == "ai" for message in state["messages"]) + 1
        call = {"name": "look", "args": {"place": step}, "id": f"call-{step}"}
        said = AIMessage("On the desk.") if step >= STEPS else AIMessage("", tool_calls=[call])
        said.usage_metadata = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
        return {"messages": [said]}

    async def _tools(self, state: MessagesState) -> dict[str, Any]:
        return {"messages": [ToolMessage("nothing", tool_call_id=_asks(state)[0]["id"])]}


def _asks(state: MessagesState) -> Any:
    return getattr(state["messages"][-1], "tool_calls", ())


async def alone() -> int:
    agent = Agent()
    await asyncio.gather(*(agent.graph.ainvoke(PROMPT) for _ in range(ROLLOUTS)))
    return agent.calls


async def runner() -> int:
    agent = Agent()
    result = await GroupRunner(agent.graph, gate=GATE, config=CONFIG).ainvoke(PROMPT)
    assert result.cut_at is None
    return agent.calls


async def graph() -> int:
    def policy() -> Policy:
        return ScriptedPolicy(TutorialBrain(1.0, steps=STEPS))

    state = await build_graph(policy, gate=GATE, config=CONFIG).ainvoke({"prompt": "Where is the mug?"})
    return sum(len(rollout["steps"]) for rollout in state["rollouts"].values())


WAYS: dict[str, Callable[[], Awaitable[int]]] = {"alone": alone, "runner": runner, "graph": graph}


def measured() -> dict[str, tuple[float, int]]:
    """Milliseconds of processor time a rollout-step, and model calls, of each way."""
    best = {name: (float("inf"), 0) for name in WAYS}
    for _ in range(REPEATS):
        for name, way in WAYS.items():
            began = time.process_time()
            calls = asyncio.run(_awaited(way))
            spent = (time.process_time() - began) / (ROLLOUTS * STEPS) * 1000
            best[name] = min(best[name], (spent, calls))
    return best


async def _awaited(way: Callable[[], Awaitable[int]]) -> int:
    return await way()


def main() -> int:
    parser = argparse.ArgumentParser(description="What a gated group costs beside its agents.")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # a threshold of 0 never fires, which is the point here
    results = measured()
    ratio = results["runner"][0] / results["alone"][0]
    are_equal = {calls for _, calls in results.values()} == {ROLLOUTS * STEPS}
    if arguments.json:
        ways = {name: {"ms": ms, "calls": calls} for name, (ms, calls) in results.items()}
        print(json.dumps({"ways": ways, "ratio": ratio, "at_most": AT_MOST}, indent=2))
    else:
        print(f"{ROLLOUTS} rollouts of {STEPS} steps; milliseconds of processor time a rollout-step")
        for name, (ms, calls) in results.items():
            print(f"  {name:<8} {ms:6.2f} ms  {calls} model calls")
        print(f"  runner to agents alone: {ratio:.2f}, at most {AT_MOST:g}")
    return 0 if ratio <= AT_MOST and are_equal else 1


if __name__ == "__main__":
    sys.exit(main())
