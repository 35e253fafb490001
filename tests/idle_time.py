"""Time that costs nothing: a loop whose clock jumps ahead whenever all that is left to do is wait."""

from __future__ import annotations

import asyncio
from typing import Any


def skip_idle_time() -> None:
    """Stop the running loop's clock while there is work; with none left, move it on to the next timer.

    A limit then strikes exactly those that wait for longer, however slow the machine. Only for work that
    stays in this loop: what threads, processes and sockets do in the meantime would be cut short.
    """
    loop: Any = asyncio.get_running_loop()
    now, select = loop.time(), loop._selector.select

    def select_or_jump(timeout: float | None = None) -> Any:
        nonlocal now
        if timeout is None:
            return select(None)
        ready = select(0)
        now += 0 if ready else timeout
        return ready

    loop.time = lambda: now
    loop._selector.select = select_or_jump
