"""One environment in a worker process of its own, for engines that block, crash, or are not thread-safe.

The factory goes to the worker by name, so this process never imports it. The pipe carries JSON text, so
nothing that an environment made is ever unpickled here; the only pickle is the one that `multiprocessing`
itself sends to the worker at its start. Workers are spawned, not forked: a fork copies locks that no thread
of the copy will release. As always with spawned processes, a script needs `if __name__ == "__main__":`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import fields
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from selective_rollout.env.base import Environment, Observation, StepResult
from selective_rollout.env.loading import load_factory
from selective_rollout.errors import ConfigError, EnvironmentFault
from selective_rollout.types import Task

_SPAWN: Final = multiprocessing.get_context("spawn")
_CHILDREN: Final = threading.Lock()
"""Held while a worker is started or reaped: multiprocessing's table of children is not made for threads."""


class ProcessEnvironment:
    """An environment whose real self lives in a worker process.

    `start` and `step` are coroutines that wait in a thread, so the event loop stays free. A worker that
    raises, dies, or runs out of time becomes an `EnvironmentFault` that says so. `close` always ends and
    reaps the worker, also while a request is still waiting for its reply.

    `functools.partial(ProcessEnvironment, "module:function")` is an `EnvironmentFactory`.

    Args:
        factory: `module:function`, as for `load_factory`; resolved in the worker.
        task: passed on to the factory; it has to pickle.
        rollout: passed on to the factory.
        start_timeout: seconds for starting the worker, its imports included, and for `start`.
        step_timeout: seconds for one `step`.
        close_timeout: seconds that an idle environment gets for its own `close`; then its process is killed.

    Raises:
        ConfigError: a timeout is not above 0.
    """

    def __init__(
        self,
        factory: str,
        task: Task,
        rollout: int,
        *,
        start_timeout: float = 120.0,
        step_timeout: float = 60.0,
        close_timeout: float = 1.0,
    ) -> None:
        if min(start_timeout, step_timeout, close_timeout) <= 0:
            raise ConfigError("timeouts of a ProcessEnvironment are seconds above 0")
        self._factory, self._task, self._rollout = factory, task, rollout
        self._start_timeout, self._step_timeout = start_timeout, step_timeout
        self._close_timeout = close_timeout
        self._replayable = False
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._closed = False
        self._busy = threading.Lock()
        """Held from a request to its reply."""

    @property
    def replayable(self) -> bool:
        """What the real environment says; False until it has been started."""
        return self._replayable

    async def start(self) -> Observation:
        """Start the worker and the environment in it.

        Raises:
            EnvironmentFault: the environment raised, its worker died, or time ran out.
        """
        reply = await asyncio.to_thread(self._start_worker)
        self._replayable = reply.pop("replayable")
        return Observation(**_tupled(reply))

    async def step(self, action: str) -> StepResult:
        """Perform one action.

        Raises:
            EnvironmentFault: the environment raised, its worker died, or time ran out.
        """
        return StepResult(**_tupled(await asyncio.to_thread(self._ask, "step", action, self._step_timeout)))

    def close(self) -> None:
        """End and reap the worker; may be called at any time, from any thread, and again."""
        if self._busy.acquire(blocking=False):
            self._let_close()
        else:
            self._end_worker()
            self._busy.acquire()  # the dead worker's pipe wakes the thread that waits for a reply
        try:
            self._end_worker()
            if self._pipe is not None:
                self._pipe.close()
        finally:
            self._pipe = None
            self._busy.release()

    def _start_worker(self) -> dict[str, Any]:
        with _CHILDREN:
            if self._closed or self._pipe is not None:
                raise EnvironmentFault(f"{self._name()} is single-use: it was started or closed before")
            self._pipe, theirs = _SPAWN.Pipe()
            arguments = (theirs, self._factory, self._task, self._rollout)
            process = _SPAWN.Process(target=_serve, args=arguments, daemon=True)
            try:
                process.start()
            except Exception as error:
                raise EnvironmentFault(f"{self._name()} could not be started: {error}") from error
            finally:
                theirs.close()
            self._process = process
        return self._ask("start", None, self._start_timeout)

    def _ask(self, method: str, argument: str | None, timeout: float) -> dict[str, Any]:
        with self._busy:
            if self._closed or self._pipe is None:
                raise EnvironmentFault(f"{self._name()} is not running: {method} needs a started environment")
            try:
                self._pipe.send_bytes(json.dumps([method, argument]).encode())
                if not self._pipe.poll(timeout):
                    self._end_worker()
                    raise EnvironmentFault(f"{self._name()} had no reply to {method} within {timeout:g} s")
                reply: dict[str, Any] = json.loads(self._pipe.recv_bytes())
            except (EOFError, OSError):
                raise EnvironmentFault(f"{self._name()} {self._cause_of_death()} during {method}") from None
        if "fault" in reply:
            raise EnvironmentFault(f"{self._name()} raised during {method}: {reply['fault']}")
        return reply

    def _let_close(self) -> None:
        """Give a worker that waits for a request the time to close its environment."""
        if self._process is None or self._pipe is None:
            return
        with suppress(EOFError, OSError):  # it may be dead already, which is what close is after
            self._pipe.send_bytes(json.dumps(["close", None]).encode())
            if self._pipe.poll(self._close_timeout):
                self._pipe.recv_bytes()

    def _end_worker(self) -> None:
        with _CHILDREN:
            self._closed = True
            if self._process is not None:
                self._process.kill()
                self._process.join()
                self._process.close()
                self._process = None

    def _cause_of_death(self) -> str:
        with _CHILDREN:
            if self._process is None:
                return "was closed"
            self._process.join(self._close_timeout)
            code = self._process.exitcode
        if code is None:
            return "closed its pipe"
        if code < 0:
            return f"was ended by signal {-code} ({signal.strsignal(-code)})"
        return f"exited with code {code}"

    def _name(self) -> str:
        return f"environment worker {self._factory} (task {self._task.id!r}, rollout {self._rollout})"


def _tupled(reply: dict[str, Any]) -> dict[str, Any]:
    """Undo what JSON does to the one tuple of a reply."""
    admissible = reply["admissible"]
    return {**reply, "admissible": None if admissible is None else tuple(admissible)}


def _serve(pipe: Connection, factory: str, task: Task, rollout: int) -> None:
    """Main function of the worker: answer requests until told to close or left alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the engine, which then closes its workers
    os.dup2(2, 1)  # what a world prints must not end up in the engine's report on stdout
    with asyncio.Runner() as runner:
        world = _World(runner, factory, task, rollout)
        try:
            while (request := json.loads(pipe.recv_bytes()))[0] != "close":
                pipe.send_bytes(world.answer(*request))
        except (EOFError, OSError):
            pass  # the engine is gone; the world is closed all the same
        farewell = world.answer("close", None)
        with suppress(OSError):
            pipe.send_bytes(farewell)


class _World:
    """The real environment, as the worker holds it."""

    def __init__(self, runner: asyncio.Runner, factory: str, task: Task, rollout: int) -> None:
        self._runner = runner
        self._factory, self._task, self._rollout = factory, task, rollout
        self._environment: Environment | None = None

    def answer(self, method: str, argument: Any) -> bytes:
        """Do what is asked and return the reply as JSON; whatever goes wrong is a reply too."""
        try:
            return json.dumps(self._do(method, argument)).encode()
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(frame.filename).name}:{frame.lineno}"
            return json.dumps({"fault": f"{type(error).__name__}: {error} ({place})"}).encode()

    def _do(self, method: str, argument: Any) -> dict[str, Any]:
        if method == "start":
            self._environment = load_factory(self._factory)(self._task, self._rollout)
            first = self._settle(self._environment.start())
            return {**_plain(first, Observation), "replayable": bool(self._environment.replayable)}
        if self._environment is None:
            return {}
        if method == "step":
            return _plain(self._settle(self._environment.step(argument)), StepResult)
        self._environment.close()
        return {}

    def _settle(self, result: Any) -> Any:
        return self._runner.run(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


def _plain(value: Any, kind: type[Observation] | type[StepResult]) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(kind)}
