"""One OpenAI-compatible endpoint: asks, retries, and puts what came back into the ledger before anybody reads it.

Retries have one owner, this module; the SDK's are off. Tried again: 408, 409, 425, 429, 5xx, timeouts, lost
connections, and answers that are none (an error inside a 200, no content, JSON cut off by the token limit). Never
another 4xx. How many requests are sent at once is the limiter's business, what they may cost the accounts'.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import openai

from nanocode.config import EndpointConfig
from nanocode.constitution.accounts import Accounts
from nanocode.constitution.earlier import EarlierAnswers
from nanocode.constitution.faults import EndpointError, Fault, refuse_non_answers, refused, usage_of
from nanocode.constitution.ledger import Answer, Ledger, question_key, request_key
from nanocode.constitution.limiter import Limiter
from nanocode.constitution.transport import Mask, UnreadableBody, http_client, key_in, require_address
from nanocode.constitution.wire import WireError, message_from_reply
from nanocode.conversation import Message

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0
LONGEST_CHECK_SECONDS = 10.0
_SHOWN_CHARACTERS = 200


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


class Endpoint:
    """Asks one model on behalf of one `part`, unless the ledger or `earlier` have the answer.

    `sleep` is an argument so that tests need not wait.
    """

    def __init__(
        self,
        config: EndpointConfig,
        *,
        part: str,
        base_url: str,
        environment: Mapping[str, str],
        ledger: Ledger,
        accounts: Accounts,
        template: str,
        limiter: Limiter,
        rng: random.Random,
        earlier: EarlierAnswers | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Raises EndpointError for an address that is none, and when the key's environment variable holds no key."""
        self._config, self._part, self._base_url = config, part, base_url
        self._ledger, self._accounts, self._template, self._earlier = ledger, accounts, template, earlier
        self._limiter, self._rng, self._sleep = limiter, rng, sleep
        self._has_answered = False
        require_address(base_url)
        self._key = key_in(environment, config.api_key_env, base_url)
        self._masked = Mask(self._key)
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=self._key or "no-key-configured",
            max_retries=0,
            timeout=config.timeout_seconds,
            http_client=http_client(base_url),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def check_key(self) -> None:
        """Ask for the list of models, which costs nothing. Raises EndpointError when the key is refused.

        Whatever else happens is no verdict: not every server has that list, nor every list every model.
        """
        if not self._key:
            return
        try:
            async with asyncio.timeout(LONGEST_CHECK_SECONDS):
                await self._client.get("/models", cast_to=str)
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            refusal = refused(error.status_code, self._shown(error.response.text), {})
        except (openai.OpenAIError, TimeoutError):
            return
        else:
            return
        raise EndpointError(self._said(f"refused its key ({self._config.api_key_env}): {refusal}"), False, fatal=True)

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        sample: str,
        seed: int,
        tools: Sequence[Mapping[str, Any]] = (),
        schema: tuple[str, Mapping[str, Any]] | None = None,
    ) -> Completion:
        """The answer to `messages`, from the ledger or from `earlier` when it was finished before.

        `sample` tells apart equal requests; `tools` are OpenAI function schemas; `schema` is (name, JSON schema) of
        the wanted reply. Raises EndpointError without an answer, ReplyError on an answer that is no assistant
        message.
        """
        request = self._request(messages, seed, tools, schema)
        key = request_key(request, sample, self._template)
        raw = self._ledger.get(key)
        if raw is None:
            question = question_key(request, sample, self._template)
            known = self._known(key, question)
            if known is not None:
                return _completion(known.raw, known.key)
            raw = await self._ask(key, question, request, wants_json=schema is not None)
        self._has_answered = True
        return _completion(raw, key)

    def _known(self, key: str, question: str) -> Answer | None:
        """An answer that was given under another bound and holds under this one, or one that was paid for elsewhere."""
        own = self._ledger.fitting(question, self._config.max_tokens)
        if own is not None or self._earlier is None:
            return own
        found = self._earlier.find(key, question, self._config.max_tokens)
        if found is None:
            return None
        answer, counted = found
        self._ledger.put(answer.key, answer.raw, answer.question, answer.bound)
        self._accounts.taken_over(answer.key, self._part, usage_of(json.loads(answer.raw)), counted)
        return answer

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

    async def _ask(self, key: str, question: str, request: dict[str, Any], wants_json: bool) -> str:
        """The raw text of a whole answer, after as many attempts as the configuration allows."""
        for attempt in range(1, self._config.max_attempts + 1):
            raw = await self._attempt(key, question, request, wants_json)
            if isinstance(raw, str):
                return raw
            if not raw.transient or attempt == self._config.max_attempts:
                raise self._failure(raw, attempt)
            await self._sleep(self._pause(attempt))
        raise AssertionError("max_attempts is at least 1")

    async def _attempt(self, key: str, question: str, request: dict[str, Any], wants_json: bool) -> str | Fault:
        """One attempt, reserved before and settled after, whatever becomes of it."""
        permit = await self._limiter.acquire()
        try:
            prompt_bytes = len(json.dumps(request, ensure_ascii=False).encode())
            reservation = await self._accounts.reserve(key, self._part, prompt_bytes, self._config.max_tokens)
            try:
                raw = await self._send(key, request)
                usage = refuse_non_answers(raw, wants_json)
            except Fault as fault:
                self._accounts.failed(reservation, str(fault), fault.usage)
                if fault.too_much:
                    self._limiter.complained(permit, fault.retry_after)
                return fault
            except BaseException as error:
                self._accounts.failed(reservation, type(error).__name__, None)
                raise
            raw = self._ledger.put(key, raw, question, self._config.max_tokens)
            self._accounts.answered(reservation, usage)
            self._limiter.succeeded()
            return raw
        finally:
            self._limiter.release()

    async def _send(self, key: str, request: dict[str, Any]) -> str:
        """The body of a 200. Raises Fault, outside of the handlers: an SDK error must not hang on as its context."""
        try:
            # The generic post: chat.completions.create spends a third of its time reshaping arguments that are plain
            # already. The header spares those a second bill who look at it.
            async with asyncio.timeout(self._config.timeout_seconds):
                raw = await self._client.post(
                    "/chat/completions", body=request, cast_to=str, options={"headers": {"Idempotency-Key": key}}
                )
            return self._masked(raw)
        except openai.APIStatusError as error:
            shown = self._shown(error.response.headers.get("location", "") or error.response.text)
            fault = refused(error.status_code, shown, error.response.headers)
        except openai.APIConnectionError as error:
            fault = self._no_connection(error)
        except TimeoutError:
            fault = self._too_slow()
        except UnreadableBody as error:
            fault = Fault(f"not taken in: {self._shown(str(error))}", transient=True, usage=None)
        except (aiohttp.ClientError, openai.OpenAIError) as error:  # what the SDK lets through as it is
            fault = Fault(f"no answer that is HTTP ({self._shown(str(error))})", transient=True, usage=None)
        raise fault

    def _too_slow(self) -> Fault:
        return Fault(f"no answer within {self._config.timeout_seconds:g} seconds", transient=True, usage=None)

    def _no_connection(self, error: openai.APIConnectionError) -> Fault:
        lost = _lost_connection(error)
        if lost is None and isinstance(error, openai.APITimeoutError):
            return self._too_slow()
        never_sent = isinstance(lost, aiohttp.ClientConnectorError)
        reason = self._shown(str(lost or error.__cause__ or error))
        return Fault(f"no connection ({reason})", transient=True, usage=(0, 0) if never_sent else None)

    def _pause(self, attempt: int) -> float:
        """Seconds before the next attempt: exponential with jitter. What the server asks for is the limiter's part."""
        backoff = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2 ** (attempt - 1))
        return backoff * self._rng.uniform(0.5, 1.0)

    def _failure(self, fault: Fault, attempts: int) -> EndpointError:
        tries = f"{attempts} attempts" if attempts > 1 else "1 attempt"
        error = EndpointError(
            self._said(f"gave no answer after {tries}: {fault}"), fault.transient, fault.is_fatal(self._has_answered)
        )
        if error.fatal:
            self._accounts.halt(error)
        return error

    def _said(self, what: str) -> str:
        return f"{self._base_url} ({self._config.model}) {what}"

    def _shown(self, text: str) -> str:
        """One short line of a server's words, without the key should the server echo it."""
        return self._masked(" ".join(text.split()))[:_SHOWN_CHARACTERS]


def _lost_connection(error: BaseException) -> BaseException | None:
    """The connection error behind an SDK error, if there is one: its aiohttp transport calls those timeouts, too."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, aiohttp.ClientConnectionError) and not isinstance(cause, TimeoutError):
            return cause
        cause = cause.__cause__
    return None


def _completion(raw: str, key: str) -> Completion:
    body = json.loads(raw)
    usage = usage_of(body) or (0, 0)
    try:
        message = message_from_reply(body["choices"][0]["message"])
    except WireError as error:
        raise ReplyError(str(error)) from None
    return Completion(
        message=message,
        model=str(body.get("model", "")).encode(errors="replace").decode(),
        prompt_tokens=usage[0],
        completion_tokens=usage[1],
        key=key,
    )
