"""The OpenAI-compatible server: ``/v1/models``, ``/v1/chat/completions`` (whole or streamed), a chat page at ``/``.

Prompts are ids built by `nanocode.conversation`, never text with control tokens in it, so what the model reads here is
what it was trained on. What may not pass is refused before the engine hears of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from nanocode.agent.tools import TOOLS
from nanocode.conversation import render_prompt
from nanocode.inference.sampling import Sampling
from nanocode.serving.chat_request import ApiError, ChatRequest, ParameterTypes, parse_request
from nanocode.serving.completion import Reply, chunks, completion
from nanocode.serving.faults import App, Receive, Scope, Send
from nanocode.serving.gate import Access, Gate
from nanocode.serving.openai_format import Token
from nanocode.serving.pages import chat_page
from nanocode.serving.scheduler import Closed, QueueFull, Scheduler, Ticket, Tools, Work
from nanocode.tokenizer import Tokenizer

MAX_BODY_BYTES = 4_000_000
RETRY_AFTER_SECONDS = 1
CLIENT_CLOSED_REQUEST = 499
_SEED_STRIDE = 0x9E3779B9  # between the seeds of a request's choices: odd, so that all are different


@dataclass(frozen=True)
class Served:
    """What is served: the model's name, other names that it answers to, its digest (empty for a folder without one)."""

    model: str
    aliases: frozenset[str]
    digest: str
    tokenizer: Tokenizer
    context_tokens: int


class Inbox:
    """What the decoding thread delivers, for a coroutine to take: (choice, tokens, or None at its end, or an error)."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, Sequence[Token] | Exception | None]] = asyncio.Queue()

    def deliverer(self, choice: int) -> Callable[[Sequence[Token] | Exception | None], None]:
        """For the decoding thread."""

        def deliver(what: Sequence[Token] | Exception | None) -> None:
            # The loop may be gone when the server is shutting down; then nobody is left to hear it.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._queue.put_nowait, (choice, what))

        return deliver

    async def take(self) -> tuple[int, Sequence[Token] | Exception | None]:
        """The next delivery."""
        return await self._queue.get()


class EventStream(StreamingResponse):
    """Server-sent events for as long as somebody listens. Then the tickets are given back, wherever the stream was."""

    def __init__(self, events: AsyncIterator[bytes], tickets: Sequence[Ticket]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._tickets = tickets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            for ticket in self._tickets:
                ticket.cancel()


class ChatServer:
    """The endpoints over one scheduler. `clock` gives Unix seconds, `draw` unpredictable numbers below its argument."""

    def __init__(
        self,
        served: Served,
        scheduler: Scheduler,
        clock: Callable[[], float] = time.time,
        draw: Callable[[int], int] = secrets.randbelow,
    ) -> None:
        self._served, self._scheduler, self._clock, self._draw = served, scheduler, clock, draw
        self._started = int(clock())
        # One seed for all requests without one, so that they can share batches; each has a stream of its own.
        self._seed = draw(2**32)

    def app(self, access: Access) -> App:
        """The ASGI application; the scheduler ends with it."""
        page = chat_page()

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            yield
            await asyncio.to_thread(self._scheduler.close)

        async def show_page(request: Request) -> Response:
            return Response(page.html, media_type="text/html", headers=page.headers)

        routes = [
            Route("/", show_page),
            Route("/healthz", self._health),
            Route("/v1/models", self._models),
            Route("/v1/models/{model:path}", self._model),
            Route("/v1/chat/completions", self._completions, methods=["POST"]),
        ]
        handlers: dict[Any, Any] = {ApiError: _refusal, 404: _no_route, 405: _no_route, 500: _failure}
        return Gate(Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers), access)

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "model": self._served.model, "waiting": self._scheduler.waiting})

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._entry()]})

    async def _model(self, request: Request) -> Response:
        self._check_model(request.path_params["model"])
        return JSONResponse(self._entry())

    def _entry(self) -> dict[str, Any]:
        return {
            "id": self._served.model,
            "object": "model",
            "created": self._started,
            "owned_by": "nanocode",
            "context_tokens": self._served.context_tokens,
        }

    async def _completions(self, request: Request) -> Response:
        asked = parse_request(await _body(request))
        self._check_model(asked.model)
        prompt = self._prompt(asked)
        inbox = Inbox()
        tickets = [
            Ticket(self._work(asked, prompt, choice), inbox.deliverer(choice)) for choice in range(asked.choices)
        ]
        reply = Reply(
            asked,
            self._served.tokenizer,
            len(prompt),
            head={
                "id": f"chatcmpl-{self._draw(2**96):024x}",
                "created": int(self._clock()),
                "model": self._served.model,
                "system_fingerprint": self._served.digest[:12] or None,
            },
        )
        try:
            self._scheduler.submit(tickets)
        except QueueFull as error:
            headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
            raise ApiError(f"{error}: try again later", 429, "queue_full", headers=headers) from None
        except Closed as error:
            raise ApiError(str(error), 503, "shutting_down", headers={"Retry-After": "10"}) from None
        if asked.stream:
            return EventStream(chunks(reply, inbox.take, tickets), tickets)
        try:
            return JSONResponse(await _unless_gone(request, completion(reply, inbox.take, tickets)))
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        finally:
            for ticket in tickets:
                ticket.cancel()

    def _check_model(self, name: str) -> None:
        if name not in self._served.aliases | {self._served.model}:
            message = f"there is no model {name!r} here: ask for {self._served.model!r}"
            raise ApiError(message, 404, "model_not_found", "model")

    def _prompt(self, asked: ChatRequest) -> list[int]:
        prompt = render_prompt(asked.messages, self._served.tokenizer)
        if len(prompt) >= self._served.context_tokens:
            raise ApiError(
                f"the messages have {len(prompt)} tokens and the model's context {self._served.context_tokens}, which "
                "leaves no room for an answer: shorten them",
                code="context_length_exceeded",
                parameter="messages",
            )
        return prompt

    def _work(self, asked: ChatRequest, prompt: Sequence[int], choice: int) -> Work:
        room = self._served.context_tokens - len(prompt)
        seed, stream = self._seed_and_stream(asked, len(prompt), choice)
        sampling = Sampling(asked.temperature, asked.top_k, asked.top_p, asked.min_p, seed)
        return Work(
            prompt=tuple(prompt),
            max_new_tokens=min(room, asked.max_tokens or room),
            sampling=Sampling() if asked.temperature == 0 else sampling,
            stream=stream,
            live=asked.stream,
            tools=_callable(asked.tools or {}),
        )

    def _seed_and_stream(self, asked: ChatRequest, prompt_tokens: int, choice: int) -> tuple[int, int]:
        """The same for the same seed, streamed or not; without a seed, what nobody had before."""
        if asked.seed is not None:
            return (asked.seed + choice * _SEED_STRIDE) % 2**32, prompt_tokens
        if asked.stream:
            return self._draw(2**32), prompt_tokens
        return self._seed, self._draw(2**31)


def _callable(tools: ParameterTypes) -> Tools:
    """What the request offers, down to the arguments, in an order that does not depend on the request's."""
    return tuple(
        (name, spec.required, tuple(argument for argument in spec.optional if argument in tools[name]))
        for name, spec in TOOLS.items()
        if name in tools
    )


async def _body(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise ApiError(f"the body has more than {MAX_BODY_BYTES} bytes", 413, "body_too_large")
        parts.append(part)
    return b"".join(parts)


async def _unless_gone(request: Request, answering: Any) -> Any:
    """The answer. Raises ClientDisconnect when nobody waits for it any more."""
    answer, gone = asyncio.ensure_future(answering), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        return answer.result()
    finally:
        answer.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.to_json(), error.status, headers=error.headers)


async def _no_route(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    fault = ApiError(f"{request.method} {request.url.path} is not served here", status, "not_found")
    return JSONResponse(fault.to_json(), status)


async def _failure(request: Request, error: Exception) -> Response:
    fault = ApiError("the server failed: its log says why", 500, "internal_error")
    return JSONResponse(fault.to_json(), 500)
