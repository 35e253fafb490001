"""A claim of a certificate, for tests and for the pages that begin with a certified gate file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from selective_rollout.gate.certificate import Certificate
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.gate_file import write_gate_file


def claim_of(rule: GateConfig, **changes: Any) -> Certificate:
    """At most 10% of the signal-bearing groups are lost, as 0 false cuts of 60 support."""
    claim = Certificate(
        rule=rule,
        alpha=0.1,
        delta=0.05,
        n_signal=60,
        false_cuts=0,
        cuts=50,
        groups=200,
        grid=f"{rule.tau:g}",
        choose_share=0.4,
        split_seed=0,
    )
    return replace(claim, **changes)


def write_certified_gate(path: Path, start_step: int) -> None:
    """Write the paper's tau at this step, certified."""
    write_gate_file(path, claim_of(GateConfig(start_step=start_step, tau=0.12)))
