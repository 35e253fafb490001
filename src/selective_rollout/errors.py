"""Every exception the package raises on purpose.

Policy: bad input raises one clear line that says what is wrong, where, and how to fix it. A rollout that
fails is *data* (`types.RolloutFailure`), never an exception that kills its group. Foreign exceptions and
cancellations pass through untouched. All classes pickle, so they may cross process borders.

    SelectiveRolloutError
    +-- ConfigError           (ValueError)    a setting is out of range, unknown, or contradicts another
    +-- GroupError            (ValueError)    a group or rollout id is unknown, repeated, or already closed
    +-- RewardError           (ValueError)    a reward cannot be read as one number
    +-- TraceError            (ValueError)    a recorded line or file cannot be read; carries file:line
    +-- PolicyError           (RuntimeError)  a model request failed; carries a kind and the HTTP status
    +-- EnvironmentFault      (RuntimeError)  an environment broke (not: the agent did badly)
    +-- PrerequisiteError     (RuntimeError)  something outside is missing: endpoint, weights, port
        +-- MissingExtraError (ImportError)   an optional dependency; carries the install line
"""

from __future__ import annotations


class SelectiveRolloutError(Exception):
    """Base of all errors raised on purpose by this package."""


class ConfigError(SelectiveRolloutError, ValueError):
    """A setting is out of range, unknown, or contradicts another one."""


class GroupError(SelectiveRolloutError, ValueError):
    """A group or rollout id is unknown, repeated, or already closed."""


class RewardError(SelectiveRolloutError, ValueError):
    """A reward cannot be read as one number."""


class TraceError(SelectiveRolloutError, ValueError):
    """A recorded line or file cannot be read; the message starts with file:line."""


class PolicyError(SelectiveRolloutError, RuntimeError):
    """A model request failed for good.

    Attributes:
        kind: one word for accounting: "connection", "timeout", "auth", "model_not_found", "context_length",
            "overloaded", "rate_limit", "bad_request", "server", "protocol".
        status: HTTP status, or None when no response came.
    """

    def __init__(self, message: str, kind: str = "server", status: int | None = None) -> None:
        super().__init__(message, kind, status)
        self.message = message
        self.kind = kind
        self.status = status

    def __str__(self) -> str:
        return self.message


class EnvironmentFault(SelectiveRolloutError, RuntimeError):
    """An environment broke, which is not the same as the agent doing badly in it."""


class PrerequisiteError(SelectiveRolloutError, RuntimeError):
    """Something outside the program is missing: an endpoint, model weights, a free port."""


class MissingExtraError(PrerequisiteError, ImportError):
    """An optional dependency is not installed; the message carries the exact install line."""

    def __init__(self, extra: str, package: str) -> None:
        super().__init__(extra, package)
        self.extra = extra
        self.package = package

    def __str__(self) -> str:
        return (
            f"{self.package} is not installed: it comes with the {self.extra!r} extra. "
            f'Run: pip install "selective-rollout[{self.extra}]"'
        )
