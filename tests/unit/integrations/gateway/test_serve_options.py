"""What `serve` refuses before it writes or listens."""

from __future__ import annotations

from pathlib import Path

import pytest

from selective_rollout.cli.main import cli
from selective_rollout.errors import ConfigError, PrerequisiteError, SelectiveRolloutError

UPSTREAM = ("--upstream", "http://127.0.0.1:9/v1")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--mode", "enforce"), "needs a certificate"),
        (("--outcome", "vote"), "drop or survivor behind a gateway"),
        (("--history-mixed", "3"), "gateway does not keep"),
        (("--idle-timeout", "0"), "must be above 0"),
        (("--hold-timeout", "0"), "must be above 0"),
        (("--audit-rate", "2"), r"must be in \[0, 1\]"),
        (("--client-keys", "missing"), "cannot read the client keys"),
        (("--gate", "missing.toml"), "missing.toml"),
        (("--actions", "missing.toml"), "cannot read the action options"),
    ],
)
def test_settings(
    options: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=says):
        cli.main(["serve", *UPSTREAM, *options], standalone_mode=False)
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_not_overwritten_nor_taken_up_with_another_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("[serve]\nmode = 'enforce'\n")
    command = ["serve", *UPSTREAM, "--port", "0", "--name", "mine"]
    with pytest.raises(ConfigError, match="choose another --name, or --resume"):
        cli.main(command, standalone_mode=False)
    with pytest.raises(ConfigError, match=r"serve.mode was 'enforce', is 'observe'"):
        cli.main([*command, "--resume"], standalone_mode=False)


def test_no_upstream_and_no_port_are_prerequisites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PrerequisiteError, match="no model endpoint"):
        cli.main(["serve"], standalone_mode=False)
    with pytest.raises(SelectiveRolloutError, match="choose another --port"):
        cli.main(["serve", *UPSTREAM, "--host", "192.0.2.1"], standalone_mode=False)
