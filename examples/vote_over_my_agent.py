"""Vote over an agent of your own and pay for little more than half of it.

The agent stands for yours: a hand-written LangGraph loop of a model and a tool, on the package's loopback
server, so this runs offline. `main` holds all that a vote takes.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.messages.utils import convert_to_openai_messages
from langgraph.graph import END, START, MessagesState, StateGraph
from openai import AsyncOpenAI

from selective_rollout import GateConfig
from selective_rollout.engine.config import RunConfig
from selective_rollout.integrations.langgraph import GroupRunner
from selective_rollout.testing import LoopbackServer, Reply, ScriptedBrain, ToolCall


def my_agent(client: Any) -> Any:
    async def model(state: Any) -> dict[str, Any]:
        sent = convert_to_openai_messages(state["messages"])
        response = await client.chat.completions.create(model="loopback-model", messages=sent)
        said, usage = response.choices[0].message, response.usage
        calls = [
            {"name": call.function.name, "args": json.loads(call.function.arguments), "id": call.id}
            for call in said.tool_calls or ()
        ]
        counts = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
        counts["total_tokens"] = usage.total_tokens
        return {"messages": [AIMessage(said.content or "", tool_calls=calls, usage_metadata=counts)]}

    def tools(state: Any) -> dict[str, Any]:
        calls = state["messages"][-1].tool_calls
        return {"messages": [ToolMessage("nothing here", tool_call_id=call["id"]) for call in calls]}

    def ask(state: Any) -> str:
        return "tools" if state["messages"][-1].tool_calls else END

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", tools)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", ask)
    builder.add_edge("tools", "model")
    return builder.compile()


def look_around(request: dict[str, Any], choice: int, seed: int | None) -> Reply:
    step = sum(message["role"] == "assistant" for message in request["messages"])
    return Reply("the desk") if step == 6 else Reply(tool_calls=(ToolCall("look", f'{{"place": {step}}}'),))


async def main() -> None:
    with LoopbackServer(ScriptedBrain(look_around)) as server:
        async with AsyncOpenAI(base_url=server.base_url, api_key=server.api_key) as client:
            runner = GroupRunner(
                my_agent(client),
                gate=GateConfig(start_step=3, outcome="survivor"),
                config=RunConfig(group_size=8, mode="enforce"),
                certified=True,  # for a scripted model; calibrate a rule for yours
            )
            result = await runner.ainvoke({"messages": [("user", "Where is the mug?")]})
    print(f"{result.answer!r}: {dict(result.votes)} cast, {result.inferred_votes} inferred")
    print(f"stopped at step {result.cut_at}; {result.ledger.requests} model calls of at most {8 * 7}")
    print(f"{result.ledger.completion} tokens written, {result.ledger.unknown_requests} replies uncounted")


if __name__ == "__main__":
    asyncio.run(main())
