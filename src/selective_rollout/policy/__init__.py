"""Policies: the seam between the engine and a language model.

`OpenAIPolicy` is imported from `selective_rollout.policy.openai_client`, which loads the OpenAI SDK; nothing
else here does.
"""

from selective_rollout.policy.base import Completion, Listener, Message, Meter, Piece, Policy, RequestInfo
from selective_rollout.policy.endpoint import Endpoint
from selective_rollout.policy.options import Constrain, RequestLimits, SamplingParams
from selective_rollout.policy.usage import read_usage, response_usage, sum_usages

__all__ = [
    "Completion",
    "Constrain",
    "Endpoint",
    "Listener",
    "Message",
    "Meter",
    "Piece",
    "Policy",
    "RequestInfo",
    "RequestLimits",
    "SamplingParams",
    "read_usage",
    "response_usage",
    "sum_usages",
]
