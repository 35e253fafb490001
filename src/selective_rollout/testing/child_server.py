"""A server in a process of its own, which ends when its owner does.

The child reads one line of JSON settings from standard input and stops when that input ends, because the
owner closed it or died. Once it serves, it writes its address to standard output; what it has to complain
about goes to standard error.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from selective_rollout.errors import PrerequisiteError


class ChildServer:
    """Starts and ends one such process.

    Args:
        command: how to run it.
        what: names it in errors.
        reason: finds the cause of a failed start in the lines of its standard error.
        env: variables on top of the owner's.
        start_timeout_s: longest wait for the address.
        stop_timeout_s: longest wait for its end, after which it is killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        what: str,
        *,
        reason: Callable[[Sequence[str]], str],
        env: Mapping[str, str],
        start_timeout_s: float,
        stop_timeout_s: float,
    ) -> None:
        self.process: subprocess.Popen[str] | None = None
        self._command = command
        self._what = what
        self._reason = reason
        self._env = env
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s

    def start(self, settings: Mapping[str, Any]) -> str:
        """Hand the settings over and return the address that comes back.

        Raises:
            PrerequisiteError: it ended, or did not answer in time.
        """
        with tempfile.TemporaryFile() as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **self._env},
                start_new_session=True,
            )
            try:
                return self._exchange(self.process, settings, log)
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """End the process; does nothing if it is not running."""
        process, self.process = self.process, None
        if process is None:
            return
        with process:
            assert process.stdin is not None
            try:
                process.stdin.close()
                process.wait(self._stop_timeout_s)
            except (subprocess.TimeoutExpired, BrokenPipeError):
                pass
            finally:
                process.kill()

    def _exchange(self, process: subprocess.Popen[str], settings: Mapping[str, Any], log: IO[bytes]) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        watchdog = threading.Timer(self._start_timeout_s, process.kill)
        watchdog.start()
        try:
            process.stdin.write(json.dumps(settings) + "\n")
            process.stdin.flush()
            address = process.stdout.readline().strip()
        except BrokenPipeError:
            address = ""
        finally:
            watchdog.cancel()
        if not address:
            log.seek(0)
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
            cause = self._reason([line for line in lines if line])
            raise PrerequisiteError(
                f"{self._what} does not start: {cause or f'no answer within {self._start_timeout_s:g} s'}"
            )
        return address
