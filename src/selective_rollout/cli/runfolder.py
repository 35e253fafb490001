"""The folder of one run: resolved config, trace, metrics; never overwritten silently."""

from __future__ import annotations

import datetime
import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from selective_rollout.errors import ConfigError
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.toml_text import to_toml, write_whole


class RunFolder:
    """`<root>/<name>/` with `config.toml`, `trace-*.jsonl`, `metrics.json` and pictures.

    Args:
        root: where runs live, usually `runs`.
        name: name of the run; None makes one from the prefix and the time.
        prefix: kind of run, for a made-up name.
        config: resolved settings, plain data.
        resume: take up an existing run; its config must be the same.

    Raises:
        ConfigError: the run exists and `resume` is off; or it is on, and the run is missing or was made with
            other settings, which are named.
    """

    def __init__(
        self,
        root: Path,
        name: str | None,
        config: Mapping[str, Any],
        *,
        prefix: str = "run",
        resume: bool = False,
    ) -> None:
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
        self.path = root / (name or f"{prefix}-{stamp}-{os.getpid()}")
        self.resumed = resume
        existing = self.path / "config.toml"
        if resume:
            _require_same(existing, config)
            return
        if self.path.exists() and any(self.path.iterdir()):
            raise ConfigError(f"{self.path} exists: choose another --name, or --resume the run")
        self.path.mkdir(parents=True, exist_ok=True)
        existing.write_text(to_toml(config), encoding="utf-8")

    def write_metrics(self, metrics: Mapping[str, object]) -> Path:
        """Write `metrics.json`; the old file stays intact until the new one is complete."""
        path = self.path / "metrics.json"
        write_whole(path, json.dumps(metrics, indent=2, allow_nan=False))
        return path


def recorded_rule(traces: Iterable[Path]) -> GateConfig | None:
    """The decision rule that all these run folders were recorded under; None if it is not one, or unknown.

    Raises:
        ConfigError: a folder's `config.toml` cannot be read.
    """
    rules = {_rule_in(trace / "config.toml") for trace in traces}
    return rules.pop() if len(rules) == 1 else None


def _rule_in(path: Path) -> GateConfig | None:
    if not path.is_file():
        return None
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("gate")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: cannot read the run's settings ({error})") from None
    return GateConfig.from_dict(table, f"{path}: gate") if isinstance(table, dict) else None


def _require_same(existing: Path, config: Mapping[str, Any]) -> None:
    if not existing.exists():
        raise ConfigError(f"{existing.parent}: no run to resume there (no config.toml)")
    before = tomllib.loads(existing.read_text(encoding="utf-8"))
    now = tomllib.loads(to_toml(config))
    differing = [
        f"{table}.{key} was {before.get(table, {}).get(key)!r}, is {now.get(table, {}).get(key)!r}"
        for table in sorted(before.keys() | now.keys())
        for key in sorted(before.get(table, {}).keys() | now.get(table, {}).keys())
        if before.get(table, {}).get(key) != now.get(table, {}).get(key)
    ]
    if differing:
        raise ConfigError(f"{existing.parent}: cannot resume with other settings: {'; '.join(differing)}")
