"""Are siblings copies of one sample? Only declared facts count."""

from __future__ import annotations

import pytest

from selective_rollout.gate.sampling import identical_sampling, sampling_is_unknown
from selective_rollout.types import SamplingInfo


@pytest.mark.parametrize(
    ("sampling", "verdict"),
    [
        ([SamplingInfo(seed=0, temperature=0.8)] * 4, "seed"),
        ([SamplingInfo(seed=i, temperature=0.8) for i in range(4)], None),
        ([SamplingInfo(seed=0), SamplingInfo()], None),
        ([SamplingInfo(temperature=0.0)] * 4, "temperature_zero"),
        ([SamplingInfo(temperature=0.0), SamplingInfo(temperature=0.7)], None),
        ([SamplingInfo(response_id="r#0"), SamplingInfo(response_id="r#1")], None),
        ([SamplingInfo(response_id="r#0"), SamplingInfo(response_id="r#0")], "response_id"),
        ([SamplingInfo(response_id="")] * 4, None),  # what some servers send identifies nothing
        ([SamplingInfo(seed=1), SamplingInfo(seed=2, cached=True)], "cached"),
        ([SamplingInfo(choices_requested=4, choices_returned=4)] * 2, None),
        ([SamplingInfo(choices_requested=4, choices_returned=1)] * 2, "fewer_choices"),
        ([SamplingInfo(seed=0)], None),
        ([], None),
        (None, None),
    ],
)
def test_verdicts(sampling: list[SamplingInfo] | None, verdict: str | None) -> None:
    assert identical_sampling(sampling) == verdict


def test_nothing_declared_is_unknown_not_fine() -> None:
    assert sampling_is_unknown(None)
    assert sampling_is_unknown([SamplingInfo()] * 3)
    assert not sampling_is_unknown([SamplingInfo(temperature=1.0)] * 3)
