"""Stop converged groups on an OpenAI-compatible endpoint, such as vLLM; one survivor answers for a cut group.

With VLLM_BASE_URL and VLLM_MODEL set, that server is used. Otherwise a loopback server with vLLM's habits and
a scripted agent stands in; it also counts the tokens it really generated.

    python examples/vllm_endpoint.py
    VLLM_BASE_URL=http://127.0.0.1:8000/v1 VLLM_MODEL=my-model python examples/vllm_endpoint.py
"""

import asyncio
import os
from contextlib import ExitStack

from selective_rollout import GateConfig, GroupOutcome, RunConfig, Task, run_group
from selective_rollout.env import HouseholdEnvironment, household_tasks
from selective_rollout.policy import Endpoint, Policy, SamplingParams
from selective_rollout.policy.openai_client import OpenAIPolicy
from selective_rollout.testing import LoopbackServer
from selective_rollout.testing.household import HouseholdBrain

RULE = GateConfig(start_step=6, outcome="survivor")
CONFIG = RunConfig(group_size=4, mode="enforce", hold="none")
TASKS = [task for index, task in enumerate(household_tasks(18)) if index in (5, 7, 11)]


async def roll_out(policy: Policy, task: Task) -> GroupOutcome:
    """Run one group and say in a line what came of it."""
    outcome = await run_group(task, policy=policy, environment=HouseholdEnvironment, gate=RULE, config=CONFIG)
    for decision in outcome.decisions:
        fate = f"cut at step {outcome.cut_at}" if outcome.cut_at else f"kept: {decision.reason}"
        shown = "unknown" if decision.distance is None else f"{decision.distance:.3f}"
        print(f"{task.id}: distance {shown}, {fate}; answer {outcome.answer!r}")
    return outcome


async def main() -> None:
    """Run a few groups and compare what the client counted with what the server did."""
    with ExitStack() as stack:
        server = None
        if "VLLM_BASE_URL" in os.environ:
            endpoint = Endpoint.resolve()
        else:
            server = stack.enter_context(LoopbackServer(HouseholdBrain(), "vllm", step_delay_s=0.01))
            endpoint = Endpoint(base_url=server.base_url, api_key=server.api_key or "", model=server.model)
        print(f"endpoint {endpoint.base_url}, model {endpoint.model}")
        async with OpenAIPolicy(endpoint, SamplingParams(temperature=0.8, max_tokens=64)) as policy:
            outcomes = [await roll_out(policy, task) for task in TASKS]
        tokens = sum(outcome.ledger.completion for outcome in outcomes)
        overrun = sum(outcome.ledger.overrun for outcome in outcomes)
        print(f"client: {tokens} completion tokens, {overrun} of them after a cut")
        if server is not None:
            counted = await server.until(lambda counters: counters.in_flight == 0)
            late = counted.tokens_after_disconnect
            print(f"server: {counted.completion_tokens} tokens generated, {late} of them for nobody any more")
            print(f"        {counted.disconnects} of {counted.requests} requests cancelled midway")


if __name__ == "__main__":
    asyncio.run(main())
