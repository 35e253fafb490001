"""Waiting for coroutines from a trainer's ordinary code, also where a notebook's event loop is running."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self


class Waiting:
    """One event loop on a thread of its own; close it by leaving its `with` block."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "rollouts")
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._thread:
            self._thread.submit(self._runner.close).result()

    def for_all(self, coroutines: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Run them side by side; the first error is raised once all of them have ended."""
        if coroutines:
            self._thread.submit(self._runner.run, _all(coroutines)).result()


async def _all(coroutines: Sequence[Coroutine[Any, Any, None]]) -> None:
    results = await asyncio.gather(*coroutines, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
