from hypothesis import given, settings
from hypothesis import strategies as st

from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.ledger import Ledger
from selective_rollout.engine.reconcile import reconcile
from selective_rollout.engine.runner import run_group
from selective_rollout.env.prompt import PromptEnvironment
from selective_rollout.policy import Completion
from selective_rollout.policy.server_metrics import ServerCounters
from selective_rollout.types import Task, Usage

counts = st.none() | st.integers(0, 500)
requests = st.tuples(counts, counts, st.integers(0, 50), st.none() | st.integers(0, 90))


@given(st.lists(requests, max_size=12), st.integers(0, 12))
@settings(max_examples=150, deadline=None)
def test_totals_cover_what_is_known_and_count_what_is_not(booked, split):
    parts = Ledger(), Ledger()
    for i, (prompt, completion, wasted, estimate) in enumerate(booked):
        usage = Usage(prompt, None, completion, None, "unknown" if completion is None else "server")
        parts[i >= split].add(usage, wasted=wasted, estimate=estimate)
    ledger = Ledger()
    for part in parts:
        ledger.merge(part)
    known = [completion for _, completion, _, _ in booked if completion is not None]
    guessed = [guess for _, completion, _, guess in booked if completion is None and guess is not None]
    assert ledger.requests == len(booked) == sum(ledger.sources.values())
    assert ledger.completion == sum(known) + sum(wasted for _, _, wasted, _ in booked)
    assert ledger.unknown_requests == len(booked) - len(known) == ledger.sources["unknown"]
    assert ledger.unknown_prompts == sum(prompt is None for prompt, *_ in booked)
    assert (ledger.estimated, ledger.estimated_requests) == (sum(guessed), len(guessed))


def booked(*usages):
    ledger = Ledger()
    for usage in usages:
        ledger.add(usage)
    return ledger


def test_a_ledger_that_agrees_with_its_server_says_so():
    found = reconcile(booked(Usage(46, 0, 128, None, "server")), ServerCounters("vLLM", 0, 368, 322, 128))
    assert (found.surplus, found.ledger_prompt, found.server_prompt) == (0, 46, 368)
    assert found.describe() == "vLLM generated 128, +0 to the ledger (+0.0%)"
    assert "once per choice" in found.to_dict()["note"]


def test_tokens_that_nobody_read_are_a_surplus():
    cut = booked(Usage(None, None, 90, None, "client"), Usage(10, 0, 10, None, "server"))
    found = reconcile(cut, ServerCounters("llama.cpp", 0, 20, 0, 105))
    assert (found.surplus, found.ledger_prompt) == (5, None)
    assert (
        found.describe() == "llama.cpp generated 105, +5 to the ledger (+5.0%): "
        "tokens nobody was there to read, or of other clients"
    )


def test_unknown_requests_explain_a_surplus_and_unknown_counters_stay_unknown():
    ledger = booked(Usage(), Usage(5, 0, 10, None, "server"))
    assert (
        "1 requests have no known count" in reconcile(ledger, ServerCounters("vLLM", 0, 9, 0, 30)).describe()
    )
    blind = reconcile(ledger, ServerCounters("vLLM", None, None, None, None))
    assert (blind.surplus, blind.to_dict()["surplus"]) == (None, None)
    assert blind.describe() == "vLLM does not count its tokens"


class SilentPolicy:
    """A server that reports no usage and does not stream: nobody counts."""

    async def complete(self, messages, info):
        info.meter.started = True
        return Completion({"role": "assistant", "content": "Final Answer: forty two"})

    async def aclose(self):
        pass


async def test_a_guess_at_what_nobody_counted_stays_apart():
    config = RunConfig(group_size=2, max_steps=2)
    done = await run_group(
        Task("t", "q"), policy=SilentPolicy(), environment=PromptEnvironment, config=config
    )
    ledger = done.ledger
    assert (ledger.requests, ledger.unknown_requests, ledger.completion) == (2, 2, 0)
    assert (ledger.estimated_requests, ledger.estimated) == (2, 2 * 6)
    assert dict(ledger.sources) == {"unknown": 2}
