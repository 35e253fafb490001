"""The loopback server as a process: `python -m selective_rollout.testing --brain tutorial --port 8000`.

Prints one line with the base URL once it listens, and serves until it is interrupted or terminated.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import threading
from collections.abc import Sequence

from selective_rollout.errors import ConfigError, SelectiveRolloutError
from selective_rollout.testing.brains import Brain, EchoBrain, TutorialBrain
from selective_rollout.testing.server import LoopbackServer


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit code."""
    options = _parser().parse_args(arguments)
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    try:
        server = LoopbackServer(
            _brain(options),
            options.personality,
            port=options.port,
            api_key=options.api_key or None,
            model=options.model,
            step_delay_s=options.step_delay,
            first_token_delay_s=options.first_token_delay,
            abort_endpoint=options.enable_abort,
        )
        with server:
            sys.stdout.write(f"{server.base_url}\n")
            sys.stdout.flush()
            stopping.wait()
    except SelectiveRolloutError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2 if isinstance(error, ConfigError) else 3
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m selective_rollout.testing", description="A fake OpenAI-compatible server on loopback."
    )
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument("--brain", default="echo", help='"echo", "tutorial" or module:factory')
    parser.add_argument("--convergent-fraction", type=float, default=0.5, help="of the tutorial brain")
    parser.add_argument("--steps", type=int, default=8, help="of the tutorial brain")
    parser.add_argument("--personality", default="vllm", help='"vllm", "llama.cpp" or "n_ignored"')
    parser.add_argument("--model", default="loopback-model", help="name to serve under")
    parser.add_argument("--api-key", default="sk-loopback", help="empty: ask for none")
    parser.add_argument("--step-delay", type=float, default=0.0, help="seconds per token of each choice")
    parser.add_argument("--first-token-delay", type=float, default=0.0, help="seconds before the first token")
    parser.add_argument("--enable-abort", action="store_true", help="switch the abort endpoint on")
    return parser


def _brain(options: argparse.Namespace) -> Brain:
    if options.brain == "echo":
        return EchoBrain()
    if options.brain == "tutorial":
        return TutorialBrain(options.convergent_fraction, steps=options.steps)
    module, _, factory = str(options.brain).partition(":")
    try:
        brain: Brain = getattr(importlib.import_module(module), factory)()
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f'--brain {options.brain}: not "echo", "tutorial" or module:factory ({error})'
        ) from error
    return brain


if __name__ == "__main__":
    sys.exit(main())
