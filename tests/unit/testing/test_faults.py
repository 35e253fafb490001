import pytest

from selective_rollout.errors import ConfigError
from selective_rollout.testing.faults import FAULT_KINDS, Fault, FaultContext, FaultPlan


def drawn(plan: FaultPlan, n: int = 400) -> list[Fault | None]:
    return [plan(FaultContext(ordinal, 0, {"prompt": ordinal})) for ordinal in range(n)]


def test_a_plan_is_the_same_on_every_run_and_another_with_another_seed() -> None:
    assert drawn(FaultPlan(0.2, ["stall", "overloaded"])) == drawn(FaultPlan(0.2, ["stall", "overloaded"]))
    assert drawn(FaultPlan(0.2, ["stall"], seed=1)) != drawn(FaultPlan(0.2, ["stall"], seed=2))


def test_a_plan_keeps_its_rate_and_uses_every_kind() -> None:
    faults = [fault for fault in drawn(FaultPlan(0.2, FAULT_KINDS), 2000) if fault is not None]
    assert len(faults) / 2000 == pytest.approx(0.2, abs=0.04)
    assert {fault.kind for fault in faults} == set(FAULT_KINDS)
    assert drawn(FaultPlan(0.0, ["stall"])) == [None] * 400
    assert None not in drawn(FaultPlan(1.0, ["stall"]))


def test_by_request_the_order_of_arrival_does_not_matter_but_the_attempt_does() -> None:
    plan = FaultPlan(0.5, ["stall"], by="request")
    body = {"a": 1, "b": 2}
    same = {"b": 2, "a": 1}
    assert plan(FaultContext(0, 0, body)) == plan(FaultContext(17, 0, same))
    assert len({plan(FaultContext(0, attempt, body)) for attempt in range(20)}) == 2


def test_a_plan_may_hold_whole_faults() -> None:
    fault = Fault("stall", after_steps=0)
    assert FaultPlan(1.0, [fault])(FaultContext(0, 0, {})) == fault


@pytest.mark.parametrize("rate", [-0.1, 1.1])
def test_a_rate_is_a_share(rate: float) -> None:
    with pytest.raises(ConfigError, match="rate"):
        FaultPlan(rate, ["stall"])


def test_unknown_and_missing_kinds_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown fault 'explode'"):
        FaultPlan(0.1, ["explode"])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="at least one"):
        FaultPlan(0.1, [])
