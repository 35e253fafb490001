"""A group of eight rollouts as a LangGraph graph, with one survivor answering once they agree.

Runs offline: the model is the package's own loopback server. To use a real one, drop the server and set
VLLM_BASE_URL and VLLM_MODEL; `build_graph()` finds them.
"""

from __future__ import annotations

import warnings

from selective_rollout.engine.rule import UncertifiedGateWarning
from selective_rollout.integrations.langgraph import GroupContext, GroupGraph, GroupResult, build_graph
from selective_rollout.policy import Endpoint
from selective_rollout.policy.openai_client import OpenAIPolicy
from selective_rollout.testing import LoopbackServer, TutorialBrain

SETTINGS = GroupContext(group_size=8, mode="enforce", outcome="survivor", start_step=3, tau=0.12)
PROMPTS = (
    "Which river runs through Vienna?",
    "Which of the two roads is shorter?",
    "How many cups are left?",
)


def run(graph: GroupGraph, prompt: str) -> GroupResult:
    """Run one group, showing each check as it happens."""
    state = {}
    for mode, part in graph.stream({"prompt": prompt}, context=SETTINGS, stream_mode=["custom", "values"]):
        if mode == "values":
            state = part
        elif part["type"] == "gate" and part["distance"] is not None:
            print(f"  step {part['step']}: distance {part['distance']:.2f}, {part['live']} go on")
    return GroupResult.from_state(state)


def main() -> None:
    warnings.simplefilter("ignore", UncertifiedGateWarning)  # a scripted model needs no certificate
    with LoopbackServer(TutorialBrain(convergent_fraction=0.5, steps=7)) as server:
        endpoint = Endpoint(base_url=server.base_url, api_key=server.api_key or "", model=server.model)
        graph = build_graph(lambda: OpenAIPolicy(endpoint))
        for prompt in PROMPTS:
            print(prompt)
            result = run(graph, prompt)
            print(f"  {result.status}: answer {result.answer!r}, votes cast {dict(result.votes)},")
            print(f"  {result.inferred_votes} inferred; {result.ledger.requests} requests of at most {8 * 7}")
        print(f"The server answered {server.counters.requests} requests.")


if __name__ == "__main__":
    main()
