"""One OpenAI-compatible endpoint: asks, retries, and puts what came back into the ledger before anybody reads it.

Retries have one owner, this module; the SDK's are off. Tried again: 408, 409, 425, 429, 5xx, timeouts, lost
connections, and answers that are none (an error inside a 200, no content, JSON cut off by the token limit). Never
another 4xx.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import openai

from nanocode.config import EndpointConfig
from nanocode.constitution.ledger import Ledger, request_key
from nanocode.constitution.wire import WireError, message_from_reply
from nanocode.conversation import Message

RETRIED_STATUS = frozenset({408, 409, 425, 429})
FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0
LONGEST_RETRY_AFTER_SECONDS = 600.0
_SHOWN_CHARACTERS = 200


class EndpointError(RuntimeError):
    """No usable answer. One line with address, model and last fault; ``transient`` if asking again later may help."""

    def __init__(self, message: str, transient: bool) -> None:
        super().__init__(message)
        self.transient = transient


class ReplyError(ValueError):
    """A finished answer that is not one assistant message, such as two tool calls in one turn."""


@dataclass(frozen=True)
class Completion:
    """An answer, the model's own name for itself, token counts where given, and the ledger key of the request."""

    message: Message
    model: str
    prompt_tokens: int
    completion_tokens: int
    key: str


class _Fault(Exception):
    """One failed attempt."""

    def __init__(self, what: str, transient: bool, retry_after: float | None = None) -> None:
        super().__init__(what)
        self.transient = transient
        self.retry_after = retry_after


class Endpoint:
    """Asks one model. `limit` bounds requests in flight; `sleep` is an argument so that tests need not wait."""

    def __init__(
        self,
        config: EndpointConfig,
        *,
        base_url: str,
        environment: Mapping[str, str],
        ledger: Ledger,
        template: str,
        limit: asyncio.Semaphore,
        rng: random.Random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Raises EndpointError when the environment variable that should hold the key is empty or missing."""
        self._config, self._base_url, self._ledger, self._template = config, base_url, ledger, template
        self._limit, self._rng, self._sleep = limit, rng, sleep
        self._key = _api_key(config, base_url, environment)
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=self._key or "no-key-configured",
            max_retries=0,
            timeout=config.timeout_seconds,
            http_client=_http_client(base_url),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        sample: str,
        seed: int,
        tools: Sequence[Mapping[str, Any]] = (),
        schema: tuple[str, Mapping[str, Any]] | None = None,
    ) -> Completion:
        """The answer to `messages`, from the ledger when it was finished before.

        `sample` tells apart equal requests; `tools` are OpenAI function schemas; `schema` is (name, JSON schema) of
        the wanted reply. Raises EndpointError without an answer, ReplyError on an answer that is no assistant
        message.
        """
        request = self._request(messages, seed, tools, schema)
        key = request_key(request, sample, self._template)
        raw = self._ledger.get(key)
        if raw is None:
            async with self._limit:
                raw = self._ledger.put(key, await self._ask(request, wants_json=schema is not None))
        return _completion(raw, key)

    def _request(
        self,
        messages: Sequence[Mapping[str, Any]],
        seed: int,
        tools: Sequence[Mapping[str, Any]],
        schema: tuple[str, Mapping[str, Any]] | None,
    ) -> dict[str, Any]:
        config = self._config
        request: dict[str, Any] = {
            "model": config.model,
            "messages": list(messages),
            "temperature": config.temperature,
            "max_tokens": config.max_tokens,
            "seed": seed,
        }
        if tools:
            request |= {"tools": list(tools), "parallel_tool_calls": False}
        if schema is not None and config.structured_output == "json_schema":
            name, body = schema
            json_schema = {"name": name, "schema": body, "strict": True}
            request["response_format"] = {"type": "json_schema", "json_schema": json_schema}
        elif schema is not None and config.structured_output == "json_object":
            request["response_format"] = {"type": "json_object"}
        return request

    async def _ask(self, request: dict[str, Any], wants_json: bool) -> str:
        """The raw text of a whole answer, after as many attempts as the configuration allows."""
        for attempt in range(1, self._config.max_attempts + 1):
            try:
                raw = await self._send(request)
                _refuse_non_answers(raw, wants_json)
                return raw
            except _Fault as fault:
                if not fault.transient or attempt == self._config.max_attempts:
                    raise self._failure(fault, attempt) from None
                await self._sleep(self._pause(attempt, fault.retry_after))
        raise AssertionError("max_attempts is at least 1")

    async def _send(self, request: dict[str, Any]) -> str:
        # The generic post: chat.completions.create spends a third of its time reshaping arguments that are plain
        # already.
        try:
            return await self._client.post("/chat/completions", body=request, cast_to=str)
        except openai.APIStatusError as error:
            status = error.status_code
            transient = status in RETRIED_STATUS or status >= 500
            raise _Fault(
                f"status {status}: {self._shown(error.response.text)}", transient, _retry_after(error.response.headers)
            ) from None
        except openai.APIConnectionError as error:
            lost = _lost_connection(error)
            if lost is None and isinstance(error, openai.APITimeoutError):
                raise _Fault(f"no answer within {self._config.timeout_seconds:g} seconds", transient=True) from None
            reason = self._shown(str(lost or error.__cause__ or error))
            raise _Fault(f"no connection ({reason})", transient=True) from None

    def _pause(self, attempt: int, retry_after: float | None) -> float:
        """Seconds before the next attempt: exponential with jitter, but never less than the server asked for."""
        backoff = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2 ** (attempt - 1))
        jittered = backoff * self._rng.uniform(0.5, 1.0)
        return jittered if retry_after is None else retry_after + jittered

    def _failure(self, fault: _Fault, attempts: int) -> EndpointError:
        tries = f"{attempts} attempts" if attempts > 1 else "1 attempt"
        return EndpointError(
            f"{self._base_url} ({self._config.model}) gave no answer after {tries}: {fault}", fault.transient
        )

    def _shown(self, text: str) -> str:
        """One short line of a server's words, without the key should the server echo it."""
        line = " ".join(text.split())
        return (line.replace(self._key, "***") if self._key else line)[:_SHOWN_CHARACTERS]


def _api_key(config: EndpointConfig, base_url: str, environment: Mapping[str, str]) -> str:
    if config.api_key_env is None:
        return ""
    key = environment.get(config.api_key_env, "")
    if not key:
        raise EndpointError(
            f"{base_url} needs a key: the environment variable {config.api_key_env} is not set", transient=False
        )
    return key


def _http_client(base_url: str) -> openai.DefaultAioHttpClient:
    """aiohttp under the SDK: two thirds of the work a request that its default transport makes.

    Without TLS no certificates are read, which would take longer than a small stage, and no redirect is followed, for
    that could lead to an address whose certificate ought to be checked.
    """
    encrypted = not base_url.startswith("http://")
    return openai.DefaultAioHttpClient(verify=encrypted, follow_redirects=encrypted)


def _lost_connection(error: BaseException) -> BaseException | None:
    """The connection error behind an SDK error, if there is one: its aiohttp transport calls those timeouts, too."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, aiohttp.ClientConnectionError) and not isinstance(cause, TimeoutError):
            return cause
        cause = cause.__cause__
    return None


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds in a ``Retry-After`` header, given as a number or as a date against the server's own clock."""
    value = headers.get("retry-after")
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - parsedate_to_datetime(headers.get("date", ""))).total_seconds()
        except (TypeError, ValueError):
            return None
    return min(max(0.0, seconds), LONGEST_RETRY_AFTER_SECONDS)


def _refuse_non_answers(raw: str, wants_json: bool) -> None:
    """Raise _Fault on a 200 that holds no answer: such a body must never enter the ledger."""
    try:
        body = json.loads(raw)
    except ValueError:
        raise _Fault("status 200 with a body that is not JSON", transient=True) from None
    if not isinstance(body, dict):
        raise _Fault("status 200 with a body that is not an object", transient=True)
    if body.get("error"):
        raise _error_inside(body["error"])
    try:
        choice = body["choices"][0]
        message = choice["message"]
        empty = message.get("content") is None and not message.get("tool_calls")
        finish = choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise _Fault("status 200 without choices[0].message", transient=True) from None
    if empty:
        raise _Fault("status 200 with content null and no tool call", transient=True)
    if finish == "length" and (wants_json or message.get("tool_calls")):
        raise _Fault("JSON cut off by max_tokens (finish_reason length): raise max_tokens", transient=True)


def _error_inside(error: Any) -> _Fault:
    """An error object in a body with status 200, judged by its code as if it were the status."""
    code = error.get("code") if isinstance(error, Mapping) else None
    refused = isinstance(code, int) and 400 <= code < 500 and code not in RETRIED_STATUS
    return _Fault(f"status 200 with an error inside (code {code!r})", transient=not refused)


def _completion(raw: str, key: str) -> Completion:
    body = json.loads(raw)
    usage = body.get("usage") or {}
    try:
        message = message_from_reply(body["choices"][0]["message"])
    except WireError as error:
        raise ReplyError(str(error)) from None
    return Completion(
        message=message,
        model=str(body.get("model", "")),
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        completion_tokens=int(usage.get("completion_tokens") or 0),
        key=key,
    )
