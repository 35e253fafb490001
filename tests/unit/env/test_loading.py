from pathlib import Path

import pytest

from selective_rollout.env import HouseholdEnvironment, load_factory
from selective_rollout.env.loading import load_function
from selective_rollout.errors import ConfigError


def test_loads_what_the_reference_names():
    assert load_factory("selective_rollout.env.household:HouseholdEnvironment") is HouseholdEnvironment


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("worlds", "is not of the form module:function"),
        ("worlds:", "is not of the form module:function"),
        (":make", "is not of the form module:function"),
        (".worlds:make", "is not of the form module:function"),
        ("no_such_module_here:make", "no module named 'no_such_module_here'; check the spelling"),
        ("selective_rollout.nowhere:make", "no module named 'selective_rollout.nowhere'"),
        ("selective_rollout.env.household:mkae", "has no 'mkae'; check the spelling"),
        ("selective_rollout.env.household:NOTHING_HAPPENS", "is a str; it must be callable"),
    ],
)
def test_a_wrong_reference_is_one_clear_line(reference, says):
    with pytest.raises(ConfigError) as caught:
        load_factory(reference)
    message = str(caught.value)
    assert says in message
    assert repr(reference) in message
    assert "\n" not in message


def test_errors_say_what_the_function_is_for():
    with pytest.raises(ConfigError, match="reward function 'score' is not of the form module:function"):
        load_function("score", "reward function")


def test_a_module_that_lacks_a_dependency_is_told_apart_from_a_missing_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "needy_worlds.py").write_text("import a_package_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="module 'needy_worlds' needs 'a_package_nobody_has'"):
        load_factory("needy_worlds:make")


def test_what_the_module_itself_raises_passes_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "broken_worlds.py").write_text("raise ZeroDivisionError('mine')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ZeroDivisionError, match="mine"):
        load_factory("broken_worlds:make")
