"""The rule of a run: from flags, or from a gate file with its certificate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from selective_rollout.cli.options import RULE_FIELDS
from selective_rollout.engine.rule import AcceptedRule
from selective_rollout.errors import ConfigError
from selective_rollout.gate.certificate import accepts
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.gate_file import read_gate_file
from selective_rollout.gate.streaming import StreamRule
from selective_rollout.types import Mode, Task

_STREAM_NUMBERS: Final = {"tau": float, "start": int, "check_every": int}


def rule_of(context: click.Context, options: Mapping[str, Any]) -> AcceptedRule:
    """Read the rule; flags that were given override the file.

    Raises:
        ConfigError: a value is out of range, the file is unreadable or was changed; or the rule is to be
            enforced, no certificate covers it, and the user does not insist.
    """
    path: Path | None = options["gate"]
    if path is None:
        rule, certificate = GateConfig.from_dict({name: options[name] for name in RULE_FIELDS}), None
    else:
        given = {
            name: options[name]
            for name in RULE_FIELDS
            if context.get_parameter_source(name) is not ParameterSource.DEFAULT
        }
        rule, certificate = read_gate_file(path)
        rule = replace(rule, **given)
    refusals = None if certificate is None else accepts(certificate, rule, per_stratum=True)
    if options["mode"] == "enforce" and rule.outcome != "vote" and not options["uncertified"]:
        _require_covered(refusals)
    return AcceptedRule(rule, certificate, certified=refusals == [])


def _require_covered(refusals: Sequence[str] | None) -> None:
    """Refuse with the differing keys, or the way to a certificate."""
    if refusals is None:
        raise ConfigError(
            "--mode enforce needs a certificate: observe first, `calibrate` the run and pass --gate "
            "gate.toml; or say --uncertified to enforce anyway"
        )
    if refusals:
        raise ConfigError(f"--mode enforce: the certificate does not cover this rule: {'; '.join(refusals)}")


def uncovered(accepted: AcceptedRule, tasks: Iterable[Task]) -> str | None:
    """What to say of tasks in no certified stratum, for which the gate is off; None: there are none."""
    certificate = accepted.certificate
    if certificate is None or not certificate.strata:
        return None
    taus = [certificate.tau_for(task.metadata) for task in tasks]
    if all(taus):
        return None
    known = ", ".join(stratum.name for stratum in certificate.strata)
    return (
        f"the gate is off for {taus.count(0.0)} of {len(taus)} tasks: their {certificate.stratum_key!r} "
        f"is missing or not certified (certified: {known})"
    )


def stream_rule_of(text: str | None) -> StreamRule | None:
    """The rule over streams from the value of --stream, such as "token,tau=0.1,start=256,check_every=64".

    Raises:
        ConfigError: the text does not follow that form, or a value is out of range.
    """
    if text is None:
        return None
    level, *settings = (part.strip() for part in text.split(","))
    given: dict[str, Any] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        if name not in _STREAM_NUMBERS or name in given:
            raise ConfigError(
                f"--stream {text!r}: {setting!r} is none of tau=, start= and check_every=, once each"
            )
        try:
            given[name] = _STREAM_NUMBERS[name](value)
        except ValueError:
            raise ConfigError(f"--stream {text!r}: {name} is no number: {value!r}") from None
    if "tau" not in given:
        raise ConfigError(f'--stream {text!r}: say tau, e.g. "token,tau=0.1"; there is no default')
    return StreamRule(level=level, **given)  # type: ignore[arg-type] # StreamRule refuses other levels


def require_uncertified_stream(rule: GateConfig, mode: Mode, *, uncertified: bool) -> None:
    """Refuse to enforce a stream rule, which no gate file holds, unless the user insists.

    Raises:
        ConfigError: with the way to a bound.
    """
    if mode == "enforce" and not uncertified and rule.outcome != "vote":
        raise ConfigError(
            "--mode enforce with --stream: a gate file certifies rules over steps only; run the rule in "
            "observe mode, let `calibrate` say what it would have cut, then say --uncertified"
        )
