"""`TrainingGate`: what the groups of one training run share."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from selective_rollout.draws import is_audited
from selective_rollout.engine.config import RunConfig
from selective_rollout.engine.outcome import GroupOutcome
from selective_rollout.engine.past import past_of, remember
from selective_rollout.engine.rule import (
    GateFile,
    accepted_rule,
    warn_about,
    warn_of_alarm,
    warn_of_workload,
)
from selective_rollout.engine.training.group import TrainingGroup
from selective_rollout.engine.training.meter import Meter
from selective_rollout.errors import ConfigError
from selective_rollout.gate.audit import ALARM_LEVEL, Seen
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.group import GroupGate
from selective_rollout.gate.history import PromptHistory
from selective_rollout.gate.schedule import AuditedController, Schedule, tau_at
from selective_rollout.trace.recorder import Recorder, log_of
from selective_rollout.types import Hold, Mode, SamplingInfo

_FORMAT: Final = 2


class TrainingGate:
    """Gates the groups of a trainer's run: opens them, and learns from how they ended.

    Args:
        rule: the decision rule, or the gate file that holds it with its certificate.
        mode: observe: record what the gate would do. enforce: cut.
        certified: whether the caller vouches for the rule, or the gate file that certifies it.
        audit_rate: share of groups, drawn by id, whose would-be cut runs on.
        seed: base of the draws.
        hold: who waits at a check for the slower members; none: nobody, whoever is ahead overshoots.
        hold_timeout_s: a longer hold switches the gate off for its group.
        schedule: maps training progress to tau; always clipped at the rule's tau.
        history: the prompts' earlier rewards, read by rule and skip, and fed by every group that ends.
        skip_probability: chance, below 1, of skipping a prompt whose last rewards were all equal.
        skip_last: how many rewards that takes; None: the rule's `history_mixed`.
        recorder: where to write the trace.

    Raises:
        ConfigError: a setting is out of range or contradicts another one, or no certificate covers the rule.
    """

    def __init__(
        self,
        rule: GateConfig | GateFile,
        *,
        mode: Mode = "observe",
        certified: bool | GateFile = False,
        audit_rate: float = 0.0,
        seed: int = 0,
        hold: Hold = "none",
        hold_timeout_s: float = 120.0,
        schedule: Schedule | None = None,
        history: PromptHistory | None = None,
        skip_probability: float = 0.0,
        skip_last: int | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._config = config = RunConfig(
            mode=mode, hold=hold, audit_rate=audit_rate, hold_timeout_s=hold_timeout_s, seed=seed
        )
        # The size of the groups is known once the first one is opened; it is held against the workload then.
        _require_kinds(rule, schedule=schedule, history=history, recorder=recorder)
        self._accepted = accepted = accepted_rule(rule, replace(config, mode="observe"), certified=certified)
        self.rule = accepted.rule
        _require_training(self.rule, history, skip_probability, skip_last)
        if mode == "enforce":
            warn_about(self.rule, replace(config, max_steps=self.rule.start_step), accepted.certified)
        self.history = history
        self.meter = Meter(1.0 if mode == "observe" else audit_rate or None)
        self.alarm = accepted.alarm(config)
        self._schedule = schedule
        self._skip_probability = skip_probability
        self._skip_last = skip_last or self.rule.history_mixed
        self._recorder = recorder
        self._progress = 0.0
        self._policy_version: int | None = None
        self._begun = 0
        self._unshared: PromptHistory | None = None
        self._sizes: set[int] = set()
        self._fallen_back = False

    @property
    def enforcing(self) -> bool:
        """Whether groups opened now are cut: in enforce mode, until the alarm rings."""
        return self._config.mode == "enforce" and not self._fallen_back

    @property
    def audit_rate(self) -> float:
        """Share of groups whose would-be cut runs on."""
        return self._config.audit_rate

    @property
    def skip_probability(self) -> float:
        """Chance of skipping a prompt whose last rewards were all equal."""
        return self._skip_probability

    @property
    def begun(self) -> int:
        """Groups opened so far in this process."""
        return self._begun

    @property
    def tau(self) -> float:
        """Threshold in force, before what a stratum or a prompt may take off it."""
        return (
            self.rule.tau if self._schedule is None else tau_at(self._schedule, self._progress, self.rule.tau)
        )

    def among(self, workers: int) -> None:
        """Be one of so many workers: all their alarms together ring falsely no more often than one would."""
        if self.alarm is not None:
            self.alarm.level = ALARM_LEVEL / workers

    def at(self, *, progress: float, policy_version: int | None = None) -> None:
        """Tell where training is: share of it done, for the schedule, and updates made, for the history.

        Without a version the trace says that it is unknown, and a history forgets nothing for its age.
        """
        self._progress, self._policy_version = progress, policy_version

    def skips(self, task_id: str, group_id: str) -> bool:
        """Whether to pass this prompt by, this time; a skipped group is counted and needs no closing."""
        if self.history is None or not self._skip_probability or not self.enforcing:
            return False
        skipped = self.history.should_skip(
            task_id,
            group_id,
            last=self._skip_last,
            probability=self._skip_probability,
            seed=self._config.seed,
        )
        self.meter.skipped += skipped
        return skipped

    def open(
        self,
        group_id: str,
        size: int,
        *,
        task_id: str | None = None,
        recorded_as: str | None = None,
        sampling: Sequence[SamplingInfo] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> TrainingGroup:
        """Begin a group.

        Args:
            group_id: explicit identity, unique over the run; never the prompt text. Audits are drawn by it.
            size: rollouts of the group.
            task_id: the prompt's own identity, which it keeps over epochs; the group id by default.
            recorded_as: its id in the trace, where the group id comes again in a restarted run; the group id
                by default.
            sampling: declared sampling facts, one per rollout.
            metadata: declared facts, e.g. strata.

        Raises:
            ConfigError: the size is below 1.
        """
        task_id = task_id or group_id
        stratum_tau = self._accepted.tau_for(metadata)
        past = past_of(self.history, self.rule, task_id, size)
        gate = GroupGate(
            self.rule,
            size,
            group_id=group_id,
            sampling=sampling,
            history=past.rewards,
            history_p=past.p_zero_variance,
            tau=self.tau if stratum_tau is None else min(self.tau, stratum_tau),
        )
        self._check_size(size)
        log = log_of(self._recorder, recorded_as or group_id, gate=gate)
        enforce = self.enforcing
        audited = enforce and is_audited(self._config.seed, group_id, self._config.audit_rate)
        version = None if self._policy_version is None else str(self._policy_version)
        log.begin(
            size=size,
            task_id=task_id,
            mode="enforce" if enforce else "observe",
            policy_version=version,
            sampling=sampling,
            history=past.rewards,
            audit=audited if enforce else None,
            metadata=metadata,
        )
        place, self._begun = self._begun, self._begun + 1
        return TrainingGroup(
            gate,
            log,
            task_id=task_id,
            policy_version=version,
            metadata=metadata or {},
            enforce=enforce,
            audited=audited,
            hold=self._config.hold or "none",
            hold_timeout_s=self._config.hold_timeout_s,
            on_close=partial(self._closed, place, enforce, self._policy_version),
        )

    def state_dict(self) -> dict[str, Any]:
        """What a restarted run goes on with, as plain data for JSON; groups under way are not part of it."""
        return {
            "training_gate_version": _FORMAT,
            "rule": self.rule.fingerprint(),
            "meter": self.meter.to_dict(),
            "history": self.history.to_dict() if self.history is not None else None,
            "schedule": self._schedule.tau if isinstance(self._schedule, AuditedController) else None,
            "alarm": self.alarm.to_dict() if self.alarm is not None else None,
            "fallen_back": self._fallen_back,
        }

    def load_state_dict(self, state: Mapping[str, Any], gone: Sequence[Mapping[str, Any]] = ()) -> None:
        """Go on from an earlier run, before the first group is opened.

        What is known of the prompts goes on in any case. Totals, alarm and a steered tau belong to a rule, a
        mode and an audit rate: under others they start anew, and a warning says so.

        Args:
            state: what `state_dict` of this worker gave.
            gone: states of workers that are no more; this one takes over their totals.

        Raises:
            ConfigError: the state is of another format, or groups were opened already.
        """
        if self._begun:
            raise ConfigError("training gate: load the state before the first group is opened")
        self.merge_history([state])
        meter = Meter.from_dict(state["meter"])
        if state["rule"] != self.rule.fingerprint() or meter.audit_rate != self.meter.audit_rate:
            warnings.warn(
                "the earlier run had another rule, mode or audit rate: the gate's totals and alarm start "
                "anew, and what is known of the prompts goes on",
                stacklevel=2,
            )
            return
        self.meter = meter
        for each in gone:
            meter.merge(Meter.from_dict(each["meter"]))
        if isinstance(self._schedule, AuditedController) and state["schedule"] is not None:
            self._schedule.tau = state["schedule"]
        if self.alarm is not None and state["alarm"] is not None:
            self.alarm.load(state["alarm"])

    def news(self) -> dict[str, Any]:
        """What `merge_history` of other workers wants to know, and that the last call did not hold yet."""
        known = self._unshared if self._unshared is not None else self.history
        if self.history is not None:
            self._unshared = self.history.empty()
        return {
            "training_gate_version": _FORMAT,
            "rule": self.rule.fingerprint(),
            "history": known.to_dict() if known is not None else None,
            "fallen_back": self._fallen_back,
        }

    def merge_history(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Take over what other workers know of the prompts, and whether the alarm has rung for this rule.

        Each worker keeps its own totals and alarm; `Meter.merge` adds totals for a report.

        Raises:
            ConfigError: a state is of another format.
        """
        for state in states:
            if state.get("training_gate_version") != _FORMAT:
                raise ConfigError(
                    f"training gate: state of format {state.get('training_gate_version')!r} is not {_FORMAT}"
                )
            if self.history is not None and state["history"] is not None:
                self.history.merge(PromptHistory.from_dict(state["history"]))
            if state["rule"] == self.rule.fingerprint():
                self._fallen_back = self._fallen_back or bool(state["fallen_back"])

    def _check_size(self, size: int) -> None:
        certificate = self._accepted.certificate
        if certificate is None or size in self._sizes or not self.enforcing:
            return
        self._sizes.add(size)
        warn_of_workload(certificate, size, stacklevel=3)

    def _closed(self, place: int, enforced: bool, policy_version: int | None, outcome: GroupOutcome) -> None:
        as_planned = enforced or self._config.mode == "observe"
        seen = self.meter.add(outcome, self.rule.reward_tolerance, as_planned=as_planned)
        for history in (self.history, self._unshared):
            remember(history, outcome, policy_version=policy_version or 0)
        if isinstance(self._schedule, AuditedController) and as_planned:
            self._schedule.observe(seen, self.meter.audit_rate)
        self._watch(place, seen if enforced else None)

    def _watch(self, place: int, seen: Seen | None) -> None:
        if self.alarm is None or not self.alarm.note(place, seen) or self._fallen_back:
            return
        self._fallen_back = True
        warn_of_alarm(self.alarm, stacklevel=4)


def _require_kinds(rule: object, *, schedule: object, history: object, recorder: object) -> None:
    for name, value, is_one, wanted in (
        (
            "the rule",
            rule,
            isinstance(rule, GateConfig | str | os.PathLike),
            "GateConfig or path of a gate.toml",
        ),
        ("schedule", schedule, callable(schedule), "function of progress, such as linear(0.12, 0.04)"),
        ("history", history, isinstance(history, PromptHistory), "PromptHistory()"),
        ("recorder", recorder, isinstance(recorder, Recorder), 'Recorder("runs/mine")'),
    ):
        if value is not None and not is_one:
            raise ConfigError(f"training gate: {name} must be a {wanted}, not {value!r}")


def _require_training(
    rule: GateConfig, history: PromptHistory | None, skip_probability: float, skip_last: int | None
) -> None:
    if rule.outcome != "drop":
        raise ConfigError(
            f"gate.outcome must be drop in training, not {rule.outcome}: a survivor has no siblings"
        )
    if not 0.0 <= skip_probability < 1.0:
        raise ConfigError(f"skip_probability must be in [0, 1), not {skip_probability!r}")
    if skip_probability and (history is None or not (skip_last or rule.history_mixed)):
        raise ConfigError("skip_probability needs a history, and skip_last or a rule with history_mixed")
    if history is None and (rule.history_mixed or (rule.score is not None and rule.score.reads_history)):
        raise ConfigError("the rule reads the prompts' earlier rewards: pass history=PromptHistory()")
