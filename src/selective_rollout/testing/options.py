"""Options of the loopback server."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Literal

from selective_rollout.errors import ConfigError
from selective_rollout.testing.brains import Brain
from selective_rollout.testing.faults import FaultSource
from selective_rollout.testing.http import Limits
from selective_rollout.testing.personality import Personality, PersonalityName, personality


@dataclass(frozen=True, eq=False)
class ServerOptions:
    """What the server says, how it behaves, and how fast it is."""

    brain: Brain
    personality: PersonalityName | Personality = "vllm"
    _: KW_ONLY
    model: str = "loopback-model"
    api_key: str | None = "sk-loopback"
    """None: no key is asked for."""
    port: int = 0
    """0 picks a free one; the address is always 127.0.0.1."""
    step_delay_s: float = 0.0
    """Time of one engine step, in which every running sequence makes one token."""
    first_token_delay_s: float = 0.0
    """Added time before the first step."""
    prefill_token_delay_s: float = 0.0
    """Added time before the first step for each prompt token not in the prefix cache."""
    max_model_len: int = 4096
    """Most tokens of a prompt and its completion together."""
    slots: int = 8
    """Largest n where the personality has slots."""
    max_running: int | None = None
    """Sequences beyond which new requests get 503; None: no bound."""
    prefix_cache: bool = True
    cache_block_size: int = 16
    prompt_tokens_details: bool = True
    """Report cached tokens in usage; off, the field is null."""
    abort_endpoint: bool = False
    """Answer POST /inference/v1/abort_requests instead of refusing it with 403."""
    auto_tool_choice: bool = True
    """Off, requests that leave tool use to the model are refused where sampling is checked strictly."""
    stops_on_disconnect: bool = True
    """Off, a request runs on after its client has left, as behind a proxy that does not pass it on."""
    framing: Literal["mixed", "plain"] = "mixed"
    """"mixed" splits some events over several writes and joins others; "plain" writes one event at a time."""
    loading_s: float = 0.0
    """Time after the start in which every request gets 503, where the personality does that."""
    sampling_seed: int = 0
    """Seeds the seeds of requests that name none, in order of arrival."""
    faults: FaultSource | None = None
    limits: Limits = field(default_factory=Limits)
    max_records: int = 10_000
    """Finished requests that the counters remember one by one."""

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name.endswith("_s") and value < 0:
                raise ConfigError(f"{option.name} is a time and cannot be negative, got {value}")
        for name in ("max_model_len", "slots", "cache_block_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        profile = self.profile
        if self.loading_s and not profile.reports_loading:
            raise ConfigError(f"loading_s has no effect: {profile.name} does not answer while it loads")

    @property
    def profile(self) -> Personality:
        """The personality itself, also if it was named."""
        return personality(self.personality) if isinstance(self.personality, str) else self.personality
