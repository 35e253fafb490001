"""The loop in a thread: one for all, nothing let in is forgotten, and nothing is let in after the end."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import threading
from concurrent.futures import CancelledError

import pytest

from selective_rollout.engine.loop import LoopThread, shared_loop

WHERE: contextvars.ContextVar[str] = contextvars.ContextVar("WHERE", default="nowhere")


async def facts() -> tuple[asyncio.AbstractEventLoop, str]:
    return asyncio.get_running_loop(), WHERE.get()


def loop_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "selective-rollout-loop"}


def test_all_work_shares_one_loop_and_sees_its_callers_context() -> None:
    loop = LoopThread()
    first, _ = loop.submit(facts()).result()
    WHERE.set("here")
    assert loop.submit(facts()).result() == (first, "here")


def test_work_is_done_in_one_thread_whoever_asks() -> None:
    loop = LoopThread()
    idents: list[int | None] = []
    askers = [
        threading.Thread(target=lambda: idents.append(loop.call(threading.get_ident))) for _ in range(3)
    ]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    loop.close()
    assert len(set(idents)) == 1
    assert threading.get_ident() not in idents


def test_work_can_be_cancelled_and_its_errors_come_back() -> None:
    async def fail() -> None:
        raise LookupError("lost")

    loop = LoopThread()
    with pytest.raises(LookupError, match="lost"):
        loop.submit(fail()).result()
    with pytest.raises(ZeroDivisionError):
        loop.call(lambda: 1 / 0)
    assert loop.submit(asyncio.sleep(30)).cancel()


def test_the_thread_ends_with_its_object() -> None:
    before = loop_threads()
    owner = LoopThread()
    assert loop_threads() <= before
    loop, _ = owner.submit(facts()).result()
    (thread,) = loop_threads() - before
    del owner
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()
    assert loop.is_closed()


def test_what_is_under_way_when_its_object_goes_is_cancelled() -> None:
    loop = LoopThread()
    future = loop.submit(asyncio.sleep(30))
    del loop
    gc.collect()
    with pytest.raises(CancelledError):
        future.result(60)


def test_closing_lets_work_under_way_come_to_its_end() -> None:
    loop = LoopThread()
    begun = threading.Event()

    async def work() -> str:
        begun.set()
        await asyncio.sleep(0.05)
        return "done"

    future = loop.submit(work())
    begun.wait(60)
    loop.close()
    loop.close()
    assert future.result(0) == "done"


def test_a_closed_loop_takes_nothing_and_says_so() -> None:
    loop = LoopThread()
    loop.close()
    assert loop.closed
    assert loop.call(int) is None
    assert loop.offer(asyncio.sleep(0)) is None
    with pytest.raises(RuntimeError, match="has been closed"):
        loop.submit(asyncio.sleep(0))


def test_waiting_for_itself_is_refused() -> None:
    async def ask_again() -> None:
        shared_loop().wait(asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="await the asynchronous method"):
        shared_loop().wait(ask_again())


def test_all_callers_of_a_process_share_a_loop() -> None:
    assert shared_loop().wait(facts())[0] is shared_loop().wait(facts())[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_has_a_loop_of_its_own() -> None:
    shared_loop().wait(facts())
    child = os.fork()
    if child == 0:
        shared_loop().wait(facts())
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
