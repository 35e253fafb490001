"""The model behind the endpoints: turns valid requests into running generations and stops them by id."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any, Final

from selective_rollout.testing.cache import PrefixCache
from selective_rollout.testing.constraints import constrained
from selective_rollout.testing.counters import Counters, RequestRecord
from selective_rollout.testing.faults import Fault, FaultContext, as_fault, body_key
from selective_rollout.testing.generation import Generation, Pace
from selective_rollout.testing.options import ServerOptions
from selective_rollout.testing.requests import ApiError, GenerateRequest
from selective_rollout.testing.sequence import (
    SequencePlan,
    cut_inside_character,
    generated_text,
    plan_sequence,
)

_MAX_BODIES: Final = 10_000
"""Bodies remembered to number a client's retries."""


class Engine:
    """Runs generations under the server's options."""

    def __init__(self, options: ServerOptions, counters: Counters) -> None:
        self._options = options
        self._counters = counters
        self._cache = PrefixCache(options.cache_block_size) if options.prefix_cache else None
        self._running: dict[int, tuple[Generation, RequestRecord]] = {}
        self._attempts: OrderedDict[str, int] = OrderedDict()
        self._seeds = random.Random(options.sampling_seed)

    def choose_fault(self, ordinal: int, body: Mapping[str, Any]) -> Fault | None:
        """What goes wrong with this request."""
        if self._options.faults is None:
            return None
        key = body_key(body)
        attempt = self._attempts.pop(key, 0)
        self._attempts[key] = attempt + 1
        if len(self._attempts) > _MAX_BODIES:
            self._attempts.popitem(last=False)
        return as_fault(self._options.faults(FaultContext(ordinal, attempt, body)))

    def start(self, request: GenerateRequest, record: RequestRecord, fault: Fault | None) -> Generation:
        """Take the prompt in and make the request's sequences ready to run.

        Raises:
            ApiError: too many sequences are running already.
        """
        limit = self._options.max_running
        if limit is not None and self._counters.running() + request.n > limit:
            raise ApiError(503, f"overloaded: at most {limit} sequences may run at a time")
        plans = self._plan(request, fault)
        cached = self._prefill(request)
        self._counters.prefilled(record, prompt=len(request.prompt), cached=cached, n=request.n)
        generation = Generation(
            plans,
            self._pace(len(request.prompt) - cached, plans[0], fault),
            uneven=self._options.profile.uneven,
            counters=self._counters,
            record=record,
        )
        self._running[record.ordinal] = generation, record
        return generation

    def finish(self, request: GenerateRequest, record: RequestRecord) -> None:
        """Forget a generation; its tokens stay in the prefix cache."""
        generation, _ = self._running.pop(record.ordinal)
        if self._cache is not None:
            for choice in generation.choices:
                self._cache.add([*request.prompt, *generated_text(choice.tokens)], request.cache_salt)

    def client_left(self, request: GenerateRequest, generation: Generation, record: RequestRecord) -> None:
        """Stop all sequences of a request whose client has gone, if this server does."""
        self._counters.disconnected(record)
        noticed = request.stream or request.n > 1 or self._options.profile.stops_unstreamed
        if self._options.stops_on_disconnect and noticed:
            generation.stop("disconnect")

    def abort(self, request_ids: Collection[str]) -> None:
        """Stop the requests with these response ids; unknown ids have no effect."""
        for generation, record in self._running.values():
            if record.request_id in request_ids:
                self._counters.aborted(record)
                generation.stop("abort")

    def _plan(self, request: GenerateRequest, fault: Fault | None) -> list[SequencePlan]:
        base = self._seeds.getrandbits(31) if request.seed is None else request.seed
        plans = []
        for index in range(request.n):
            choice = 0 if request.greedy else index
            seed = 0 if request.greedy else base + index
            said = self._options.brain.reply(request.body, choice=choice, seed=seed)
            reply = constrained(said, request.body, self._options.profile.constraints, seed)
            plan = plan_sequence(reply, max_tokens=request.max_tokens, stop=request.stop)
            if fault is not None and fault.kind == "truncated_utf8":
                plan = cut_inside_character(plan, fault.after_steps)
            plans.append(plan)
        return plans

    def _prefill(self, request: GenerateRequest) -> int:
        """Compute the prompt; returns how many of its tokens were cached."""
        if self._cache is None:
            return 0
        cached = self._cache.cached_tokens(request.prompt, request.cache_salt)
        self._cache.add(request.prompt, request.cache_salt)
        return cached

    def _pace(self, computed: int, first: SequencePlan, fault: Fault | None) -> Pace:
        options = self._options
        first_s = options.first_token_delay_s + options.prefill_token_delay_s * computed
        if fault is not None and fault.kind == "slow_first_token":
            first_s += fault.delay_s
        stall_after = None
        if fault is not None and fault.kind == "stall":
            stall_after = min(fault.after_steps, len(first.tokens) - 1)
        return Pace(first_s, options.step_delay_s, stall_after)
