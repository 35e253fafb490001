"""The group's own event loop: nothing that was let in is forgotten, and nothing is let in after the end."""

from __future__ import annotations

import asyncio
import threading

import pytest

pytest.importorskip("langchain", reason='needs pip install "selective-rollout[langchain]"')

from selective_rollout.integrations.langchain.loop import GroupLoop


def test_work_is_done_in_one_thread_whoever_asks() -> None:
    loop = GroupLoop()
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


def test_errors_come_back_to_whoever_asked() -> None:
    loop = GroupLoop()
    with pytest.raises(ZeroDivisionError):
        loop.call(lambda: 1 / 0)
    loop.close()


def test_closing_lets_work_under_way_come_to_its_end() -> None:
    loop = GroupLoop()
    begun = threading.Event()

    async def work() -> str:
        begun.set()
        await asyncio.sleep(0.05)
        return "done"

    future = loop.submit(work)
    assert future is not None
    begun.wait(5)
    loop.close()
    loop.close()
    assert future.result(0) == "done"


def test_a_closed_loop_takes_nothing_and_says_so() -> None:
    loop = GroupLoop()
    loop.close()
    assert loop.closed
    assert loop.call(int) is None
    assert loop.submit(lambda: asyncio.sleep(0)) is None
