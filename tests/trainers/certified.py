"""A certified gate file, for the pages that begin with one."""

from __future__ import annotations

from pathlib import Path

from selective_rollout.gate.certificate import Certificate
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.gate_file import write_gate_file


def write_certified_gate(path: Path, start_step: int) -> None:
    """Write the paper's tau at this step, with a certificate that 0 false cuts of 60 support."""
    write_gate_file(
        path,
        Certificate(
            rule=GateConfig(start_step=start_step, tau=0.12),
            alpha=0.1,
            delta=0.05,
            n_signal=60,
            false_cuts=0,
            cuts=50,
            groups=200,
            grid="0.12",
            choose_share=0.4,
            split_seed=0,
        ),
    )
