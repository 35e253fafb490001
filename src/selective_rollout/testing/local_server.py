"""The process that serves a gguf model for `LocalModel`; it is run as a file and imports nothing of ours.

Standard input brings one line of JSON and then stays open: when it ends, because the parent
closed it or died, the server stops. Standard output carries the address, once the model is loaded.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import xllamacpp


def main() -> None:
    """Serve until standard input ends; its first line holds the settings that `_parameters` reads."""
    # Ctrl-C goes to every process of the terminal; when to stop is for the parent to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = xllamacpp.Server(_parameters(json.loads(sys.stdin.readline())))
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    # Taking the server down in order waits for answers under way, and nobody reads those any more.
    os._exit(0)


def _parameters(settings: dict[str, Any]) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = settings["weights"]
    parameters.model_alias = {settings["name"]}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.api_keys = [settings["api_key"]]
    parameters.chat_template = settings["chat_template"]
    parameters.endpoint_metrics = True
    parameters.ui = False
    parameters.verbosity = 1  # errors only
    # One slot per rollout, each with a context of its own that stays when the slot is idle: otherwise every
    # step of an agent computes its whole history again.
    parameters.n_parallel = settings["slots"]
    parameters.n_ctx = settings["slots"] * settings["context_per_slot"]
    parameters.kv_unified = False
    parameters.cache_idle_slots = False
    parameters.cache_ram_mib = 0
    parameters.cpuparams.n_threads = settings["threads"]
    parameters.cpuparams_batch.n_threads = settings["threads"]
    return parameters


if __name__ == "__main__":
    main()
