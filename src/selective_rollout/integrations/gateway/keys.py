"""Who a client is: its key names its scope, and group ids of two scopes never meet."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from selective_rollout.errors import ConfigError
from selective_rollout.policy.endpoint import NO_KEY

KEY_PREFIX: Final = "sr-"
_BEARER: Final = b"bearer "
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LEAST_KEY: Final = 16


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """The keys that clients may come with.

    Without any, what a client sends as `Authorization` goes up as it is, and its salted hash is the scope.

    Raises:
        ConfigError: a name or key cannot be used. No message shows a key.
    """

    keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Keys by client name, which is the client's scope; the name "" leaves group ids as they are."""
    salt: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def __post_init__(self) -> None:
        for name, key in self.keys.items():
            if name and not _NAME.fullmatch(name):
                raise ConfigError(f"client name {name!r}: use up to 64 of A-Z a-z 0-9 . _ -")
            if len(key) < _LEAST_KEY or not key.isascii() or not key.isprintable() or " " in key:
                raise ConfigError(
                    f"the key of client {name!r} must be at least {_LEAST_KEY} printable ASCII characters "
                    "without spaces (it is not shown)"
                )
        if len(set(self.keys.values())) < len(self.keys):
            raise ConfigError("two clients have the same key: give each its own")

    @property
    def required(self) -> bool:
        """Whether a client has to come with one of these keys."""
        return bool(self.keys)

    def scope_of(self, authorization: bytes | None) -> str | None:
        """The scope of a client, or None for one that is not let in.

        Args:
            authorization: the value of its Authorization header.
        """
        given = b"" if authorization is None else authorization.strip()
        if given[: len(_BEARER)].lower() == _BEARER:
            given = given[len(_BEARER) :].strip()
        if not self.keys:
            open_door = not given or given == NO_KEY.encode()
            return "" if open_door else hmac.new(self.salt, given, hashlib.sha256).hexdigest()[:16]
        found = None
        for name, key in self.keys.items():  # all of them, so that the time taken tells nothing
            if hmac.compare_digest(given, key.encode()):
                found = name
        return found


def new_key() -> str:
    """A fresh client key."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def read_keys(path: Path) -> dict[str, str]:
    """Read `name key` lines; empty lines and lines that start with # are skipped.

    Raises:
        ConfigError: the file cannot be read, others may read it, or a line is wrong. No message shows a key.
    """
    try:
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise ConfigError(f"{path}: others may read these keys; run: chmod 600 {path}")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read the client keys ({type(error).__name__})") from None
    keys: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or words[0] in keys:
            raise ConfigError(f"{path}:{number}: expected one `name key` a line, each name once")
        keys[words[0]] = words[1]
    if not keys:
        raise ConfigError(f"{path}: holds no client key")
    return keys


def kept_salt(path: Path) -> bytes:
    """The salt in a file, made if it is not there, so that a client keeps its scope over a restart.

    Raises:
        ConfigError: the file cannot be read or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            salt = path.read_bytes()
        else:
            salt = secrets.token_bytes(32)
            with os.fdopen(descriptor, "wb") as file:
                file.write(salt)
    except OSError as error:
        raise ConfigError(f"{path}: cannot keep the salt of client scopes ({error.strerror})") from None
    if len(salt) != 32:
        raise ConfigError(f"{path}: is no salt of this gateway; move it away")
    return salt


def hide(text: str, secret_texts: Iterable[str]) -> str:
    """The text without the secrets."""
    for secret in secret_texts:
        text = text.replace(secret, "***")
    return text
