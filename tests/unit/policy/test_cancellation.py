import asyncio

import anyio
import pytest
from tests.idle_time import skip_idle_time

from selective_rollout.policy.cancellation import finish_cleanup


class Work:
    """Works until cancelled, then needs a moment to clean up, which it shields as HTTP clients do."""

    def __init__(self):
        self.cleaned = asyncio.Event()

    async def run(self):
        try:
            await asyncio.sleep(60)
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(0.01)
            self.cleaned.set()


@pytest.mark.parametrize("cancellations", [1, 2, 3])
async def test_cleanup_outlives_further_cancellations(cancellations):
    skip_idle_time()
    work = Work()
    task = asyncio.create_task(finish_cleanup(work.run()))
    await asyncio.sleep(0)
    for _ in range(cancellations):
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.cleaned.is_set() == (cancellations == 1)
    await asyncio.wait_for(work.cleaned.wait(), 10)


async def test_results_and_errors_pass():
    async def give():
        return 7

    async def fail():
        raise ValueError("x")

    assert await finish_cleanup(give()) == 7
    with pytest.raises(ValueError, match="x"):
        await finish_cleanup(fail())


async def test_work_that_can_be_brought_to_its_end_is_not_cancelled():
    ended, asked = asyncio.Event(), []

    async def end_early(task):
        asked.append(task)
        ended.set()
        await asyncio.wait([task])

    task = asyncio.create_task(finish_cleanup(ended.wait(), end_early))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (work,) = asked
    assert not work.cancelled()
    assert work.result() is True


async def test_a_second_cancellation_ends_the_attempt_at_a_better_end():
    async def end_early(task):
        await asyncio.sleep(60)

    skip_idle_time()
    work = Work()
    task = asyncio.create_task(finish_cleanup(work.run(), end_early))
    for _ in range(2):
        await asyncio.sleep(0.01)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)
    assert work.cleaned.is_set()
