"""How servers that speak the same API differ, as data.

Each field is one behaviour in which vLLM 0.32 and llama.cpp's server of late 2026 were measured to disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from selective_rollout.errors import ConfigError

PersonalityName: TypeAlias = Literal["vllm", "llama.cpp", "n_ignored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Personality:
    """The habits of one kind of server; the defaults are vLLM's."""

    name: str = "vllm"
    metrics_prefix: Literal["vllm", "llamacpp"] = "vllm"
    honours_n: bool = True
    """False: any n yields one choice, without an error."""
    n_within_slots: bool = False
    """n above the number of slots is refused; otherwise any n queues."""
    strict_sampling: bool = True
    """Greedy n > 1, a temperature outside [0, 2] and max_tokens out of range are refused."""
    checks_model: bool = True
    """A wrong model name is refused instead of ignored."""
    usage_sums_choices: bool = True
    """False: usage reports the completion tokens of one choice only."""
    usage_chunk_per_choice: bool = False
    """A stream carries one usage chunk per choice instead of one in total."""
    continuous_usage: bool = True
    """Honours stream_options.continuous_usage_stats."""
    roles_first: bool = True
    """All role chunks come before any text; otherwise each just before its choice's first token."""
    role_content: str | None = ""
    """`content` of the role chunk."""
    finish_with_text: bool = True
    """The last chunk holds text and finish_reason; otherwise finish_reason comes in a chunk of its own."""
    uneven: bool = True
    """Choices drift apart, and some chunks carry no text."""
    null_fields: bool = True
    """Optional fields are present as null; otherwise absent."""
    reasoning_field: Literal["reasoning", "reasoning_content"] = "reasoning"
    token_ids: bool = True
    """Honours return_token_ids."""
    details_always: bool = False
    """prompt_tokens_details is present whatever the server's options say."""
    error_objects: bool = False
    """401 and unknown paths answer with an error object instead of a string and `detail`."""
    open_paths: frozenset[str] = frozenset({"/health", "/metrics", "/version"})
    """Paths that need no API key."""
    reports_loading: bool = False
    """Answers 503 while the model loads; otherwise the port stays closed until it is ready."""
    has_abort_endpoint: bool = True
    stops_unstreamed: bool = True
    """False: an answer to one choice that is not streamed is generated to its end, whoever is there."""
    constraints: frozenset[str] = frozenset({"choice", "json_schema"})
    """Ways of keeping to given texts that are understood; a field of another way is ignored."""
    keeps_streams_alive: bool = True
    """False: the connection is closed after a streamed response that had promised keep-alive."""


VLLM: Final = Personality()
LLAMA_CPP: Final = Personality(
    name="llama.cpp",
    metrics_prefix="llamacpp",
    n_within_slots=True,
    strict_sampling=False,
    checks_model=False,
    usage_sums_choices=False,
    usage_chunk_per_choice=True,
    continuous_usage=False,
    roles_first=False,
    role_content=None,
    finish_with_text=False,
    uneven=False,
    null_fields=False,
    reasoning_field="reasoning_content",
    token_ids=False,
    details_always=True,
    error_objects=True,
    open_paths=frozenset({"/health"}),
    reports_loading=True,
    has_abort_endpoint=False,
    stops_unstreamed=False,
    constraints=frozenset({"grammar", "json_schema"}),
    keeps_streams_alive=False,
)
N_IGNORED: Final = replace(
    VLLM,
    name="n_ignored",
    honours_n=False,
    strict_sampling=False,
    has_abort_endpoint=False,
    constraints=frozenset(),
)

_BY_NAME: Final = {known.name: known for known in (VLLM, LLAMA_CPP, N_IGNORED)}


def personality(name: str) -> Personality:
    """Look up a personality.

    Raises:
        ConfigError: there is none of that name.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise ConfigError(f"unknown personality {name!r}: choose one of {', '.join(_BY_NAME)}") from None
