"""Writing TOML."""

from __future__ import annotations

import pytest

from selective_rollout.errors import ConfigError
from selective_rollout.gate.toml_text import to_toml


def test_tables_and_arrays_of_tables() -> None:
    text = to_toml({"a": {"x": 1, "none": None, "s": 'q"\\'}, "b": [{"y": [0.5, 1e-6]}, {}]}, "why\n\nso")
    assert text == '# why\n#\n# so\n\n[a]\nx = 1\ns = "q\\"\\\\"\n\n[[b]]\ny = [0.5, 1e-06]\n\n[[b]]\n'


@pytest.mark.parametrize("value", [{"nested": 1}, object(), [None]])
def test_what_toml_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="x: .* has no place in a TOML file"):
        to_toml({"a": {"x": value}})


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(ConfigError, match="x: the text .* is not valid Unicode"):
        to_toml({"a": {"x": "\ud800"}})
