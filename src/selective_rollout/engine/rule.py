"""Which rule is in force, and what certifies it: a rule of one's own, or the one of a gate file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from selective_rollout.engine.config import RunConfig
from selective_rollout.gate.audit import Alarm
from selective_rollout.gate.certificate import Certificate, Workload, workload_differences
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.gate_file import read_gate_file, require_certified

GateFile: TypeAlias = str | os.PathLike[str]
"""Path of a gate.toml."""


class UncertifiedGateWarning(UserWarning):
    """A gate stops groups although no certificate bounds the harm."""


class AuditAlarmWarning(UserWarning):
    """Audits contradict the certificate of an enforced gate; it only observes from here on."""


def warn_of_alarm(alarm: Alarm, *, stacklevel: int) -> None:
    """Say that the alarm has rung; `stacklevel` counts from the caller, as for `warnings.warn`."""
    text = f"the gate is off from here on: {alarm.describe()}"
    warnings.warn(text, AuditAlarmWarning, stacklevel=stacklevel + 1)


class WorkloadWarning(UserWarning):
    """A certificate was made on another workload than the one it is used for."""


def warn_of_workload(certificate: Certificate, group_size: int, *, stacklevel: int) -> None:
    """Say in what the live workload differs; `stacklevel` counts from the caller, as for `warnings.warn`."""
    for difference in workload_differences(certificate, Workload(group_size=group_size)):
        text = f"the gate was certified on another workload: {difference}"
        warnings.warn(text, WorkloadWarning, stacklevel=stacklevel + 1)


@dataclass(frozen=True, slots=True)
class AcceptedRule:
    """A rule, and what certifies it."""

    rule: GateConfig
    certificate: Certificate | None = None
    """The rule's own; None also where the caller vouches for it."""
    certified: bool = False
    """Whether the certificate covers the rule, or the caller vouches for it."""

    def tau_for(self, metadata: Mapping[str, Any] | None) -> float | None:
        """A group's own threshold, where the certificate is by stratum; None: the rule's."""
        if self.certificate is None or not self.certificate.strata:
            return None
        return self.certificate.tau_for(metadata or {})

    def alarm(self, config: RunConfig) -> Alarm | None:
        """Watches an enforcing run; None without audits, or without a certificate that covers the rule."""
        if self.certificate is None or not self.certified or config.mode != "enforce":
            return None
        return self.certificate.alarm(config.audit_rate)


def accepted_rule(
    gate: GateConfig | GateFile, config: RunConfig, *, certified: bool | GateFile = False
) -> AcceptedRule:
    """Read a rule, and hold it against its certificate.

    Args:
        gate: the rule, or the gate file that holds it. A file without a certificate is a rule like any other.
        config: how groups are run.
        certified: whether the caller vouches for the rule; or the gate file that certifies it, which covers
            its own rule and those that provably cut a subset of the same groups (see `accepts`).

    Returns:
        The rule. A certificate of another workload is accepted with a warning.

    Raises:
        ConfigError: a file cannot be read or was changed; or it certifies another rule, with every field that
            stands against this one.
    """
    rule, certificate = (gate, None) if isinstance(gate, GateConfig) else read_gate_file(Path(gate))
    if not isinstance(certified, bool):
        certificate, _ = require_certified(Path(certified), rule, per_stratum=True)
    if certificate is not None and config.mode == "enforce":
        warn_of_workload(certificate, config.group_size, stacklevel=3)
    return AcceptedRule(rule, certificate, certificate is not None or certified is True)


def warn_about(gate: GateConfig, config: RunConfig, certified: bool) -> None:
    """Say what a rule cannot do, and that nothing bounds the harm of one that is enforced."""
    if config.stream is not None and config.mode == "enforce" and gate.outcome != "vote":
        warnings.warn(
            "enforcing a stream rule: no certificate covers it, and nothing bounds how many signal-bearing "
            "groups it stops",
            UncertifiedGateWarning,
            stacklevel=3,
        )
    if config.max_steps < gate.start_step and config.stream is None:
        warnings.warn(
            f"max_steps {config.max_steps} is below start_step {gate.start_step}: this gate can never fire",
            stacklevel=3,
        )
    elif gate.tau == 0:
        warnings.warn("tau is 0, and no distance is below 0: this gate can never fire", stacklevel=3)
    elif config.mode == "enforce" and gate.outcome != "vote" and not certified:
        warnings.warn(
            "enforcing a gate without a certificate: nothing bounds how many signal-bearing groups it stops",
            UncertifiedGateWarning,
            stacklevel=3,
        )
