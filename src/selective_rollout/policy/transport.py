"""The OpenAI SDK behind a seam of a few calls; only this module and `policy.events` import it.

Bodies and answers are plain dicts: servers differ too much for the SDK's models. The SDK neither retries nor
sends anything from the environment here. It runs on httpx (SDK 2) or httpx2 (SDK 3), whose exceptions SDK 2
does not always wrap.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import NoneType
from typing import Any, Final, TypeVar

import openai

from selective_rollout.errors import PolicyError
from selective_rollout.policy.endpoint import Endpoint
from selective_rollout.policy.events import ChunkStream, reading_json
from selective_rollout.policy.failures import Failure, from_policy_error, from_status, from_transport

_T = TypeVar("_T")

_CONNECT_TIMEOUT_S: Final = 10.0
_PATH: Final = "/chat/completions"
_GETS: Final = 3
_ERROR_CODES: Final = frozenset(map(str, range(400, 600)))
_http: Any = importlib.import_module("httpx" if openai.__version__.startswith("2.") else "httpx2")

REQUEST_ERRORS: Final[tuple[type[Exception], ...]] = (
    openai.OpenAIError,
    _http.RequestError,
    OSError,
    UnicodeEncodeError,
    PolicyError,
)
"""Everything by which a request can fail; `describe` turns each into a failure."""


class _Client(openai.AsyncOpenAI):
    """The SDK's client with exactly our headers.

    The SDK would add organization, project and arbitrary headers from OPENAI_* variables, whichever server is
    asked.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._headers = {
            "Accept": "application/json",
            "Content-Type": "application/json",
            "User-Agent": "selective-rollout",
            "Authorization": f"Bearer {endpoint.api_key}",
        }
        if endpoint.organization is not None:
            self._headers["OpenAI-Organization"] = endpoint.organization
        super().__init__(
            api_key=endpoint.api_key,
            base_url=endpoint.base_url,
            organization=endpoint.organization,
            timeout=openai.Timeout(None, connect=_CONNECT_TIMEOUT_S),
            max_retries=0,
        )

    @property
    def default_headers(self) -> dict[str, str | openai.Omit]:
        return dict(self._headers)


class Transport:
    """Requests to one endpoint over one pool of connections, bound to the event loop that uses it first."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._client = _Client(endpoint)

    @asynccontextmanager
    async def stream(
        self, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncIterator[AsyncIterator[object]]:
        """Send a request and iterate over its decoded chunks; leaving the context closes the connection.

        Raises:
            REQUEST_ERRORS: also while iterating.
        """
        answer = await self._client.post(
            _PATH,
            cast_to=object,
            body=dict(body),
            options={"headers": dict(headers)},
            stream=True,
            stream_cls=openai.AsyncStream[object],
        )
        chunks = ChunkStream(answer)
        try:
            yield chunks
        finally:
            await chunks.aclose()

    async def fetch(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> object:
        """Send a request and return the whole decoded answer.

        Raises:
            REQUEST_ERRORS: the request failed.
        """
        with reading_json():
            return await self._client.post(
                _PATH, cast_to=object, body=dict(body), options={"headers": dict(headers)}
            )

    async def models(self) -> tuple[str, ...]:
        """Names that the server lists.

        Raises:
            REQUEST_ERRORS: the request failed; kind "protocol" if the answer is no list of models.
        """
        with reading_json():
            answer = await self._get("/models", object)
        data = answer.get("data") if isinstance(answer, Mapping) else None
        if not isinstance(data, list):
            raise PolicyError("/models answered with something other than a list of models", "protocol")
        return tuple(str(model["id"]) for model in data if isinstance(model, Mapping) and "id" in model)

    async def post_root(self, path: str, body: Mapping[str, Any]) -> None:
        """Send a request to a path below the server's root, where servers keep what is not OpenAI's.

        Raises:
            REQUEST_ERRORS: the request failed.
        """
        await self._client.post(self._endpoint.root_url + path, cast_to=NoneType, body=dict(body))

    async def get_root(self, path: str) -> str:
        """Read a path below the server's root as text.

        Raises:
            REQUEST_ERRORS: the request failed.
        """
        return await self._get(self._endpoint.root_url + path, str)

    def describe(self, error: Exception) -> Failure:
        """Turn one of REQUEST_ERRORS into a failure."""
        if isinstance(error, PolicyError):
            return from_policy_error(error, self._endpoint)
        if isinstance(error, openai.APIStatusError):
            return from_status(error.status_code, error.body, error.response.headers, self._endpoint)
        if isinstance(error, openai.APIConnectionError | OSError | _http.RequestError):
            return from_transport(error, self._endpoint)
        if isinstance(error, openai.APIError):
            return self._describe_event(error)
        return Failure("bad_request", "a message holds half a character (a lone surrogate); replace it")

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def _get(self, path: str, kind: type[_T]) -> _T:
        """Ask, and ask again where the server had hung up on the kept connection: asking changes nothing."""
        for _ in range(_GETS - 1):
            try:
                return await self._client.get(path, cast_to=kind)
            except REQUEST_ERRORS as error:
                if not self.describe(error).unanswered:
                    raise
        return await self._client.get(path, cast_to=kind)

    def _describe_event(self, error: openai.APIError) -> Failure:
        """An error event inside a stream that had begun with status 200."""
        code = str(error.body.get("code")) if isinstance(error.body, Mapping) else ""
        status = int(code) if code in _ERROR_CODES else 500
        return from_status(status, error.body, {}, self._endpoint)
