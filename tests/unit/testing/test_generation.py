import asyncio

import pytest

from selective_rollout.testing.brains import Reply
from selective_rollout.testing.counters import Counters, RequestRecord
from selective_rollout.testing.generation import Generation, Pace
from selective_rollout.testing.sequence import plan_sequence, shown_text

LONG = "one two three four five six seven eight nine ten eleven twelve"


def make(texts: list[str], pace: Pace | None = None, *, uneven: bool = True) -> tuple[Generation, Counters]:
    counters = Counters(max_records=10)
    record = RequestRecord(0, "/v1/chat/completions", "chatcmpl-0")
    counters.opened(record)
    counters.prefilled(record, prompt=1, cached=0, n=len(texts))
    plans = [plan_sequence(Reply(content=text), max_tokens=1000) for text in texts]
    generation = Generation(plans, pace or Pace(0.0, 0.0), uneven=uneven, counters=counters, record=record)
    return generation, counters


async def run(generation: Generation) -> list[list[tuple[int, str, str | None]]]:
    steps = []
    while (emissions := await generation.step()) is not None:
        steps.append([(e.index, shown_text(e.tokens, "content") or "", e.finish_reason) for e in emissions])
    return steps


@pytest.mark.parametrize("uneven", [True, False])
async def test_every_choice_shows_its_text_once_and_ends_once(uneven: bool) -> None:
    texts = [LONG, "short", "", LONG.upper()]
    generation, counters = make(texts, uneven=uneven)
    flat = [part for step in await run(generation) for part in step]
    for index, text in enumerate(texts):
        assert "".join(shown for i, shown, _ in flat if i == index) == text
        assert [finish for i, _, finish in flat if i == index and finish] == ["stop"]
    now = counters.snapshot()
    assert now.completion_tokens == sum(len(choice.plan.tokens) for choice in generation.choices)
    assert (now.running, now.finished) == (0, {"stop": 4})


async def test_the_first_choice_runs_ahead_and_others_drift() -> None:
    generation, _ = make([LONG] * 4)
    steps = await run(generation)
    assert [index for index, _, _ in steps[0]] == [0]
    assert len({tuple(index for index, _, _ in step) for step in steps}) > 3


async def test_the_last_text_comes_with_the_finish_reason_when_uneven() -> None:
    steps = await run(make(["go north"])[0])
    assert steps == [[(0, "go", None)], [], [(0, " north", "stop")]]
    steps = await run(make(["go north"], uneven=False)[0])
    assert steps == [[(0, "go", None)], [(0, " north", None)], [(0, "", "stop")]]


async def test_some_chunks_carry_no_text() -> None:
    steps = await run(make([LONG])[0])
    assert (0, "", None) in [part for step in steps for part in step]


async def test_a_disconnect_stops_all_choices_at_the_end_of_the_step() -> None:
    generation, counters = make([LONG] * 4, Pace(0.0, 0.01))
    for _ in range(3):
        await generation.step()
    before = counters.snapshot().completion_tokens
    step = asyncio.create_task(generation.step())
    await asyncio.sleep(0)
    counters.disconnected(counters._live[0])
    generation.stop("disconnect")
    assert await step is not None
    assert await generation.step() is None
    now = counters.snapshot()
    assert now.completion_tokens - before == now.tokens_after_disconnect <= 4


async def test_an_abort_ends_every_live_choice_with_what_it_has() -> None:
    generation, _ = make([LONG, "hi", LONG])
    for _ in range(5):
        await generation.step()
    generation.stop("abort")
    emissions = await generation.step()
    assert emissions is not None
    assert [(e.index, e.finish_reason) for e in emissions] == [(0, "abort"), (2, "abort")]
    assert await generation.step() is None
    assert [choice.finish_reason for choice in generation.choices] == ["abort", "stop", "abort"]


async def test_a_stop_before_the_first_token_costs_no_token() -> None:
    generation, counters = make([LONG], Pace(first_s=60.0, step_s=0.0))
    step = asyncio.create_task(generation.step())
    await asyncio.sleep(0)
    generation.stop("disconnect")
    assert await step is None
    assert counters.snapshot().completion_tokens == 0


async def test_a_stall_lasts_until_it_is_stopped() -> None:
    generation, counters = make([LONG], Pace(0.0, 0.0, stall_after=2))
    running = asyncio.create_task(run(generation))
    done, _ = await asyncio.wait({running}, timeout=0.05)
    assert not done
    generation.stop("disconnect")
    await running
    assert counters.snapshot().completion_tokens == 2
