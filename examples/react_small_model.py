"""A ReAct agent on a real model of 135 million parameters: four copies of it look for an object in a house.

The model runs on the CPU (the extra `llm`; 93 MB are downloaded at the very first time). It is too small to
write tool calls, so a middleware lets it choose among the commands that its house understands, and makes a
tool call of its choice. Every rollout has a house of its own, made by the factory.
"""

from __future__ import annotations

import asyncio
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI

from selective_rollout import GateConfig
from selective_rollout.engine.config import RunConfig
from selective_rollout.integrations.langgraph import GroupRunner
from selective_rollout.policy.constrain import constraint_body
from selective_rollout.testing import local_model, small_agent
from selective_rollout.types import Task


class House(AgentMiddleware[Any, Any, Any]):
    """One rollout's world, and the commands that it allows now."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._world = small_agent.FindEnvironment(task)
        self.start = self._world.start()
        self._choices = self.start.admissible or ()
        self._is_done = False

    def act(self, command: str) -> str:
        """Perform one command in the house."""
        result = self._world.step(command)
        self._choices, self._is_done = result.admissible or (), result.terminated
        return result.observation

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        """Let the model choose a command; once the object is found it is not asked any more."""
        if self._is_done:
            nothing = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
            return AIMessage("found it", usage_metadata=nothing)
        plain = [HumanMessage(m.text) if m.type == "tool" else type(m)(m.text) for m in request.messages]
        allowed = {"extra_body": constraint_body("grammar", self._choices)}
        response = await handler(request.override(tools=[], messages=plain, model_settings=allowed))
        (chosen,) = response.result
        call = {"type": "tool_call", "name": "act", "args": {"command": chosen.text}, "id": str(len(plain))}
        return chosen.model_copy(update={"tool_calls": [call]})


async def main() -> None:
    gate = GateConfig(start_step=3, tau=0.3, outcome="survivor")
    config = RunConfig(group_size=4, max_steps=6, mode="enforce", temperature=0.3)
    template = small_agent.SMALL_AGENT_TEMPLATE
    with local_model.LocalModel(slots=4, context_per_slot=512, chat_template=template) as server:
        name, url, key = server.model, server.base_url, server.api_key
        model = ChatOpenAI(model=name, base_url=url, api_key=lambda: key, temperature=0.3)
        for task in small_agent.find_tasks(3):

            def agent_of(rollout: int, task: Task = task) -> Any:
                house, sampler = House(task), model.model_copy(update={"seed": 1 + rollout})
                return create_agent(sampler, [house.act], middleware=[house])

            # `certified` only for show: nothing bounds the harm of this rule; calibrate one for your agent.
            runner = GroupRunner(agent_of, gate=gate, config=config, certified=True)
            question = small_agent.small_agent_opening(task, House(task).start)
            result = await runner.ainvoke({"messages": question})
            print(f"{task.prompt} Cut at step {result.cut_at}; {result.ledger.completion} tokens written")
            for rollout in result.rollouts:
                print(f"  {rollout.status.value}: {', '.join(rollout.actions)}")
        await model.root_async_client.close()


if __name__ == "__main__":
    asyncio.run(main())
