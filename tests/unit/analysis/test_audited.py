"""Audited runs: the two rates, and renewing a certificate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from selective_rollout.analysis.audited import Renewal, audit_counts, renew
from selective_rollout.analysis.verdicts import explain_renewal
from selective_rollout.errors import ConfigError
from selective_rollout.gate.audit import Seen, thinned
from selective_rollout.gate.certificate import Certificate, Stratum
from selective_rollout.gate.config import GateConfig
from selective_rollout.gate.group import GroupGate
from selective_rollout.gate.score import TwoSidedScore
from selective_rollout.stats import binom_cdf, needed_zero_false
from selective_rollout.trace.group_log import GroupLog
from selective_rollout.trace.reader import RecordedGroup, read_groups
from selective_rollout.trace.recorder import Recorder
from selective_rollout.trace.seen import seen_of

RULE = GateConfig(start_step=2, tau=0.3)
CERTIFICATE = Certificate(RULE, 0.2, 0.05, 60, 2, 20, 100, "0.1:0.3:0.1", 0.4, 0)


class Run:
    """Records groups of an enforcing run, two members each."""

    def __init__(self, folder: Path, rule: GateConfig = RULE) -> None:
        self.folder = folder
        self.rule = rule
        self.recorder = Recorder(folder / "trace.jsonl")
        self.count = 0

    def group(
        self,
        rows: Sequence[str],
        rewards: Sequence[float | None],
        *,
        audit: bool = False,
        mode: str = "enforce",
        late_veto: bool = False,
        task_id: str | None = None,
    ) -> None:
        """A group that is cut if the rule fires, unless it is audited."""
        self.count += 1
        name = f"g{self.count}"
        log = GroupLog(self.recorder.write, name, gate=GroupGate(self.rule, 2, group_id=name))
        log.begin(size=2, task_id=task_id or name, mode=mode, audit=audit)  # type: ignore[arg-type]
        fired = None
        for k in range(max(map(len, rows))):
            for member, row in enumerate(rows):
                decision = log.step(member, row[k])
                fired = decision if decision is not None and decision.fires else fired
        cut = fired is not None and not audit and not late_veto and mode == "enforce"
        for member, reward in enumerate(rewards):
            if cut:
                log.cut(member)
            else:
                log.finish(member, reward)
        log.end(
            outcome="drop" if cut else None, cut_at=fired.step if cut and fired else None, late_veto=late_veto
        )

    def read(self) -> list[RecordedGroup]:
        self.recorder.close()
        return list(read_groups(self.folder))


SAME, APART = ["aaa", "aaa"], ["aaa", "bbb"]
MIXED, EQUAL = [0.0, 1.0], [0.0, 0.0]


def test_each_group_is_seen_for_what_it_was(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.group(SAME, EQUAL)
    run.group(SAME, MIXED, audit=True)
    run.group(SAME, EQUAL, audit=True)
    run.group(SAME, MIXED, late_veto=True, audit=True)
    run.group(APART, MIXED, audit=True)
    run.group(APART, [0.0, None])
    run.group(SAME, MIXED, mode="observe")
    groups = run.read()
    assert [seen_of(recorded, RULE) for recorded in groups] == [
        Seen(True, False, None),
        Seen(False, True, False),
        Seen(False, True, True),
        Seen(False, False, False),
        Seen(False, False, False),
        Seen(False, False, None),
        None,
    ]
    counts = audit_counts(groups, 0.5, RULE)
    assert (counts.audited_signal, counts.kept_signal, counts.audited_zero_variance) == (1, 2, 1)
    assert counts.unobserved == 1


def test_a_good_gate_is_renewed_from_its_audits(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for _ in range(80):
        run.group(APART, MIXED)
    for _ in range(20):
        run.group(SAME, EQUAL)
    run.group(SAME, MIXED, audit=True)
    run.group(SAME, EQUAL, audit=True)
    groups = run.read()
    renewed = renew(groups, CERTIFICATE, 0.5).certificate
    assert renewed is not None
    assert (renewed.n_signal, renewed.false_cuts, renewed.cuts, renewed.groups) == (81, 1, 2, 82)
    assert (renewed.recertification, renewed.audit_rate, renewed.level) == (1, 0.5, 0.025)
    assert renewed.rule == RULE
    again = renew(groups, replace(renewed, rule=RULE), 0.5).certificate
    assert again is not None
    assert (again.recertification, again.level) == (2, 0.05 / 6)


def test_too_many_wrong_cuts_end_it(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for _ in range(60):
        run.group(APART, MIXED)
    for _ in range(12):
        run.group(SAME, MIXED, audit=True)
    assert renew(run.read(), CERTIFICATE, 0.5).certificate is None


def few(tmp_path: Path, wrong: int, observed: int) -> Renewal:
    run = Run(tmp_path)
    for i in range(observed):
        run.group(*((SAME, MIXED) if i < wrong else (APART, MIXED)), audit=i < wrong)
    run.group(SAME, EQUAL, audit=True)
    return renew(run.read(), CERTIFICATE, 0.5)


def test_too_few_audits_are_told_from_audits_that_contradict(tmp_path: Path) -> None:
    allowed = thinned(CERTIFICATE.alpha, 0.5)
    found = few(tmp_path, wrong=0, observed=19)
    assert (found.certificate, found.is_contradicted) == (None, False)
    assert (found.observed, found.would_be_cuts, found.allowed) == (19, 0, allowed)
    assert found.more_needed == needed_zero_false(allowed, 0.025) - 19 == 13
    assert explain_renewal(found) == (
        "Not renewed: too few audits yet. 0 of 19 observed signal-bearing groups (one for each task) are "
        "would-be cuts, and it allows 11% at this audit rate: that neither supports the certificate nor "
        "contradicts it. At least 13 more are needed, if none of those is a would-be cut."
    )


def test_so_many_more_would_really_renew_it(tmp_path: Path) -> None:
    assert few(tmp_path / "short", wrong=0, observed=31).certificate is None
    assert few(tmp_path / "enough", wrong=0, observed=32).certificate is not None


def test_a_wrong_cut_or_two_may_be_chance_and_ask_for_more(tmp_path: Path) -> None:
    found = few(tmp_path, wrong=2, observed=19)
    assert not found.is_contradicted, "2 of 19 or more have a chance of 64% at 11%"
    assert found.more_needed == 44
    assert binom_cdf(2, 63, found.allowed) <= 0.025 < binom_cdf(2, 62, found.allowed)


def test_more_wrong_cuts_than_chance_allows_contradict_it(tmp_path: Path) -> None:
    found = few(tmp_path, wrong=6, observed=19)
    assert found.is_contradicted
    assert explain_renewal(found) == (
        "Off: the audits contradict the certificate. 6 of 19 observed signal-bearing groups (one for each "
        "task) are would-be cuts, and it allows 11% at this audit rate. Calibrate again."
    )


def test_without_any_signal_all_are_still_needed(tmp_path: Path) -> None:
    found = few(tmp_path, wrong=0, observed=0)
    assert (found.observed, found.is_contradicted, found.more_needed) == (0, False, 32)


def test_a_lower_threshold_may_survive(tmp_path: Path) -> None:
    rule = replace(RULE, start_step=5, tau=0.3)
    run = Run(tmp_path, rule)
    for _ in range(60):
        run.group(["aaaaaa", "bbbbbb"], MIXED)
    for _ in range(12):
        run.group(["aaaaaa", "aaaaba"], MIXED, audit=True)
    renewed = renew(run.read(), replace(CERTIFICATE, rule=rule), 0.5).certificate
    assert renewed is not None
    assert renewed.rule.tau == 0.2, "the wrong cuts had distance 0.2, which is not below it"


def test_groups_of_a_task_count_once_and_cut_ones_take_part_in_the_draw(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for i in range(200):
        run.group(APART, MIXED, task_id=f"t{i % 50}")
        run.group(SAME, EQUAL, task_id=f"t{i % 50}")
    renewed = renew(run.read(), replace(CERTIFICATE, alpha=0.4), 0.5).certificate
    assert renewed is not None
    assert 10 < renewed.n_signal < 40, "about half of the 50 tasks draw a group that was cut"


def test_groups_that_fired_and_ran_on_without_an_audit_err_on_the_safe_side(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for _ in range(60):
        run.group(APART, MIXED)
    for _ in range(12):
        run.group(SAME, MIXED, late_veto=True)
    assert renew(run.read(), CERTIFICATE, 0.5).certificate is None


def test_a_run_under_a_covered_rule_renews_too(tmp_path: Path) -> None:
    live = replace(RULE, tau=0.2)
    run = Run(tmp_path, live)
    for _ in range(80):
        run.group(APART, MIXED)
    groups = run.read()
    with pytest.raises(ConfigError, match=r"trace\.jsonl:2: group 'g1' was gated by rule"):
        renew(groups, CERTIFICATE, 0.5)
    assert renew(groups, CERTIFICATE, 0.5, enforced=live).certificate is not None
    with pytest.raises(ConfigError, match="does not cover the rule of the run: tau: 0.4"):
        renew(groups, CERTIFICATE, 0.5, enforced=replace(RULE, tau=0.4))


def test_a_score_is_read_from_the_recorded_decisions(tmp_path: Path) -> None:
    weights = TwoSidedScore(("history_p_zero_variance",), (0.5,), (0.1,), (-1.0,), (-1.0,), 0.0, 0.0)
    rule = replace(RULE, score=weights)
    run = Run(tmp_path, rule)
    for _ in range(40):
        run.group(APART, MIXED)
    renewed = renew(run.read(), replace(CERTIFICATE, rule=rule), 0.5).certificate
    assert renewed is not None
    assert renewed.false_cuts == 0, "without a history the score was unknown, so nothing fired"


def test_what_cannot_be_renewed_is_named(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.group(APART, MIXED, mode="observe")
    with pytest.raises(ConfigError, match="holds no labelled group of an enforcing run"):
        renew(run.read(), CERTIFICATE, 0.5)
    strata = replace(CERTIFICATE, strata=(Stratum("x", 0.1, 60, 0, 1, 100),), stratum_key="type")
    with pytest.raises(ConfigError, match="a certificate with strata has to be calibrated again"):
        renew([], strata, 0.5)
