"""The event loop of synchronous runs."""

import asyncio
import contextvars
import gc
import threading
from concurrent.futures import CancelledError

import pytest

from selective_rollout.integrations.langgraph.bridge import LoopThread

WHERE: contextvars.ContextVar[str] = contextvars.ContextVar("WHERE", default="nowhere")


async def facts() -> tuple[asyncio.AbstractEventLoop, str]:
    return asyncio.get_running_loop(), WHERE.get()


def loop_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "selective-rollout-loop"}


def test_all_work_shares_one_loop_and_sees_its_callers_context() -> None:
    bridge = LoopThread()
    first, _ = bridge.submit(facts()).result()
    WHERE.set("here")
    assert bridge.submit(facts()).result() == (first, "here")


def test_work_can_be_cancelled_and_its_errors_come_back() -> None:
    async def fail() -> None:
        raise LookupError("lost")

    bridge = LoopThread()
    with pytest.raises(LookupError, match="lost"):
        bridge.submit(fail()).result()
    assert bridge.submit(asyncio.sleep(30)).cancel()


def test_the_thread_ends_with_its_bridge() -> None:
    before = loop_threads()
    bridge = LoopThread()
    assert loop_threads() == before
    loop, _ = bridge.submit(facts()).result()
    (thread,) = loop_threads() - before
    del bridge
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()
    assert loop.is_closed()


def test_what_is_under_way_when_it_ends_is_cancelled() -> None:
    bridge = LoopThread()
    future = bridge.submit(asyncio.sleep(30))
    del bridge
    gc.collect()
    with pytest.raises(CancelledError):
        future.result(5)
