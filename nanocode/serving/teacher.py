"""The embedded teacher: an OpenAI-compatible endpoint with rules behind it, so that every stage runs without a key.

It speaks ``/v1/chat/completions`` (whole or streamed), ``/v1/models`` and ``/health``. Which part it plays is read
from the first line of the system prompt (`nanocode.constitution.prompts.role_line`):

generator  the next message of the task expert in the stock register, tool calls in OpenAI form
critic     the rule critic's verdict as JSON
reviser    the expert's soul-register texts for the same conversation, as JSON

``seed`` chooses among the expert's wordings; other sampling fields have no effect. Equal requests get equal bytes.
Token counts in ``usage`` are words, for there is no tokenizer here. The model calls itself ``nanocode-rules``: what it
teaches is labelled so, and nobody is told that a rule is a language model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from nanocode.constitution.prompts import RULES_MODEL, Part, part_of
from nanocode.constitution.rules import critique
from nanocode.constitution.soul import Soul
from nanocode.constitution.wire import WireError, from_openai, openai_call
from nanocode.conversation import Conversation, ConversationError, Message, from_json
from nanocode.serving.streaming import events
from nanocode.tasks.family import NotRecognised
from nanocode.tasks.registry import respond

MODEL = RULES_MODEL


class BadRequest(ValueError):
    """A request the teacher does not understand; ``status`` is the HTTP status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def create_app(soul: Soul) -> Starlette:
    """The ASGI application; `soul` is what the critic judges by."""

    async def completions(request: Request) -> Response:
        body = await request.body()
        try:
            completion = answer(body, soul)
            if b'"stream' not in body or not (asked := json.loads(body)).get("stream"):
                return _json(completion)
            include_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
            return StreamingResponse(events(completion, include_usage), media_type="text/event-stream")
        except BadRequest as error:
            return _error(str(error), error.status)

    async def models(request: Request) -> Response:
        entry = {"id": MODEL, "object": "model", "created": 0, "owned_by": "nanocode"}
        return _json({"object": "list", "data": [entry]})

    async def health(request: Request) -> Response:
        return _json({"status": "ok", "model": MODEL, "soul": soul.digest})

    return Starlette(
        routes=[
            Route("/v1/chat/completions", completions, methods=["POST"]),
            Route("/v1/models", models),
            Route("/health", health),
        ]
    )


def answer(body: bytes, soul: Soul) -> dict[str, Any]:
    """The completion for a request's raw body. Raises BadRequest."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(request, dict):
        raise BadRequest("the body must be a JSON object")
    _refuse_unsupported(request)
    try:
        messages = from_openai(request.get("messages") or [])
    except WireError as error:
        raise BadRequest(str(error)) from None
    if not messages or messages[0].role != "system" or part_of(messages[0].content) is None:
        raise BadRequest(
            "the first message must be one of nanocode's system prompts (generator, critic or reviser): "
            f"{MODEL} is no general assistant"
        )
    part = part_of(messages[0].content)
    choice = request.get("seed") or 0
    if not isinstance(choice, int) or isinstance(choice, bool):
        raise BadRequest("seed must be an integer")
    if part == "generator":
        reply = _generate(messages[1:], choice)
    elif part == "critic":
        reply = Message("assistant", _criticise(_payload(messages), soul))
    else:
        reply = Message("assistant", _revise(_payload(messages), choice))
    _refuse_other_form(request.get("response_format"), reply.content, part)
    return _completion(reply, messages, hashlib.sha256(body).hexdigest())


def _refuse_unsupported(request: Mapping[str, Any]) -> None:
    if request.get("model") != MODEL:
        raise BadRequest(f"there is no model {request.get('model')!r} here: ask for {MODEL!r}", 404)
    if request.get("n") not in (None, 1):
        raise BadRequest("one choice a request: leave out `n` and vary `seed`")


def _refuse_other_form(wanted: Any, reply: str, part: Part | None) -> None:
    """An answer that `response_format` does not allow is no answer; rules cannot give another one."""
    kind = wanted.get("type") if isinstance(wanted, Mapping) else wanted
    if kind in (None, "text"):
        return
    if kind not in ("json_object", "json_schema"):
        raise BadRequest(f"response_format {kind!r} is not known: use text, json_object or json_schema")
    if part == "generator":
        raise BadRequest("the generator answers in prose and tool calls: leave out response_format")
    if kind == "json_object":
        return
    try:
        schema = wanted["json_schema"]["schema"]
        required, allowed = set(schema.get("required", ())), set(schema.get("properties", ()))
    except (KeyError, TypeError, AttributeError):
        raise BadRequest("response_format json_schema needs json_schema.schema, an object schema") from None
    given = set(json.loads(reply))
    if not required <= given or (schema.get("additionalProperties") is False and not given <= allowed):
        raise BadRequest(f"the {part} answers with {', '.join(sorted(given))}, which the schema does not allow")


def _payload(messages: list[Message]) -> Any:
    """The JSON in the user message of a critic or reviser request."""
    if len(messages) != 2 or messages[1].role != "user":
        raise BadRequest("a critic or reviser request is a system message and one user message")
    try:
        payload = json.loads(messages[1].content)
        json.dumps(payload, ensure_ascii=False).encode()  # half a surrogate pair cannot be answered
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the user message must hold JSON: {error}") from None
    return payload


def _conversation(payload: Any) -> list[Message]:
    if not isinstance(payload, list):
        raise BadRequest("the conversation must be a JSON list of messages")
    try:
        conversation = from_json(payload)
    except (ConversationError, ValueError) as error:
        raise BadRequest(f"not a conversation: {error}") from None
    if not any(message.role == "assistant" for message in conversation):
        raise BadRequest("the conversation holds no assistant message")
    return conversation


def _generate(conversation: Conversation, choice: int) -> Message:
    if not conversation or conversation[-1].role not in ("user", "tool_result"):
        raise BadRequest("the last message must come from the user or a tool")
    return _expert(conversation, "stock", choice)


def _expert(conversation: Conversation, register: Any, choice: int) -> Message:
    try:
        return respond(conversation, register, choice)
    except NotRecognised as error:
        raise BadRequest(str(error)) from None


def _criticise(payload: Any, soul: Soul) -> str:
    found = critique(_conversation(payload), soul)
    violations = list(dict.fromkeys(violation.principle for violation in found.violations))
    return json.dumps({"score": found.score, "violations": violations, "critique": found.text}, ensure_ascii=False)


def _revise(payload: Any, choice: int) -> str:
    if not isinstance(payload, dict):
        raise BadRequest("a reviser request holds a JSON object with `conversation` and `critique`")
    conversation = _conversation(payload.get("conversation"))
    texts = [
        _expert(conversation[:index], "soul", choice).content
        for index, message in enumerate(conversation)
        if message.role == "assistant"
    ]
    return json.dumps({"texts": texts}, ensure_ascii=False)


def _completion(reply: Message, asked: Conversation, digest: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.tool_call is not None:
        message["content"] = reply.content or None
        message["tool_calls"] = [openai_call(reply.tool_call, len(asked) - 1)]
    prompt_words = sum(len(entry.content.split()) for entry in asked)
    reply_words = len(reply.content.split()) + (0 if reply.tool_call is None else _words_of_call(reply))
    finish = "stop" if reply.tool_call is None else "tool_calls"
    return {
        "id": f"chatcmpl-{digest[:24]}",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": {
            "prompt_tokens": prompt_words,
            "completion_tokens": reply_words,
            "total_tokens": prompt_words + reply_words,
        },
    }


def _words_of_call(reply: Message) -> int:
    assert reply.tool_call is not None
    return 1 + sum(1 + len(value.split()) for value in reply.tool_call.arguments.values())


_dump: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _json(value: Any, status: int = 200) -> Response:
    return Response(_dump(value).encode(), status, media_type="application/json")


def _error(message: str, status: int) -> Response:
    return _json({"error": {"message": message, "type": "invalid_request_error", "code": None}}, status)
