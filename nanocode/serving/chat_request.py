"""A request to ``/v1/chat/completions`` as it comes, checked, and as a conversation in nanocode's grammar.

What would change the answer and is not offered here is refused by name; fields that cannot change it are let pass.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nanocode.agent.tools import TOOLS
from nanocode.constitution.wire import WireError, from_openai
from nanocode.conversation import ConversationError, Message, check_turns

MAX_CHOICES = 16
MAX_STOPS = 4
ParameterTypes = Mapping[str, Mapping[str, str]]


class ApiError(Exception):
    """A refusal in OpenAI's shape: HTTP status, one line, a machine-readable `code`, and the field it is about."""

    def __init__(
        self,
        message: str,
        status: int = 400,
        code: str | None = None,
        parameter: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.parameter, self.headers = status, code, parameter, dict(headers or {})

    def to_json(self) -> dict[str, Any]:
        """The body of the reply."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(self.status, kind)
        return {"error": {"message": str(self), "type": kind, "param": self.parameter, "code": self.code}}


@dataclass(frozen=True)
class ChatRequest:
    """What is asked for.

    `tools` is None when the request offers none; else, by tool, the JSON types that its schema gives to the arguments.
    `max_tokens` None means as many as the context holds.
    """

    model: str
    messages: tuple[Message, ...]
    choices: int
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    stop: tuple[str, ...]
    log_probabilities: bool
    tools: ParameterTypes | None
    stream: bool
    include_usage: bool


class _StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    include_usage: bool | None = False


class _Body(BaseModel):
    """The fields that are understood; `extra` holds the others."""

    model_config = ConfigDict(extra="allow", strict=True)
    model: str
    messages: list[Any] = Field(min_length=1)
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)
    top_k: int | None = Field(None, ge=0)
    min_p: float | None = Field(None, ge=0, lt=1, allow_inf_nan=False)
    seed: int | None = None
    stop: str | list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    response_format: Any = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


# They say who asks or how it is billed and stored, or they hold the value that is in force here anyway.
_WITHOUT_EFFECT = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
)
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "modalities": (["text"],),
}


def parse_request(raw: bytes) -> ChatRequest:
    """The request in a raw body. Raises ApiError (400) that names the field, or the turn that the grammar forbids."""
    body = _body(raw)
    _refuse_unsupported(body)
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if len(stop) > MAX_STOPS or not all(stop):
        raise ApiError(f"stop takes up to {MAX_STOPS} strings, none of them empty", parameter="stop")
    limits = [limit for limit in (body.max_completion_tokens, body.max_tokens) if limit is not None]
    return ChatRequest(
        model=body.model,
        messages=_conversation(body.messages),
        choices=body.n or 1,
        max_tokens=min(limits, default=None),
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k or 0,
        min_p=body.min_p or 0.0,
        seed=body.seed,
        stop=stop,
        log_probabilities=bool(body.logprobs),
        tools=_tools(body),
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
    )


def _body(raw: bytes) -> _Body:
    try:
        values = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the body is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ApiError("the body must be a JSON object")
    try:
        return _Body.model_validate(values)
    except ValidationError as error:
        fault = error.errors()[0]
        name = str(fault["loc"][0])
        raise ApiError(f"{name}: {fault['msg'][:1].lower()}{fault['msg'][1:]}", parameter=name) from None


def _refuse_unsupported(body: _Body) -> None:
    for name, value in (body.model_extra or {}).items():
        if name in _WITHOUT_EFFECT or value is None or value in _NEUTRAL.get(name, ()):
            continue
        raise ApiError(f"{name} is not supported here: leave it out", code="unsupported_parameter", parameter=name)
    if body.top_logprobs:
        message = "top_logprobs is not supported here: logprobs gives those of the tokens that were chosen"
        raise ApiError(message, code="unsupported_parameter", parameter="top_logprobs")
    form = body.response_format.get("type") if isinstance(body.response_format, dict) else body.response_format
    if form not in (None, "text"):
        message = f"response_format {form!r} is not supported here: this model answers in text and tool calls"
        raise ApiError(message, code="unsupported_parameter", parameter="response_format")


def _conversation(entries: Sequence[Any]) -> tuple[Message, ...]:
    plain = [_plain(entry) for entry in entries]
    _check_ids(plain)
    try:
        messages = from_openai(plain)
        check_turns(messages)
    except (WireError, ConversationError) as error:
        raise ApiError(str(error), parameter="messages") from None
    if messages[-1].role not in ("user", "tool_result"):
        raise ApiError("the last message must come from the user or from a tool", parameter="messages")
    return tuple(messages)


def _plain(entry: Any) -> Any:
    """OpenAI's newer spellings in the older form: the role developer, and text in parts."""
    if not isinstance(entry, dict):
        return entry
    content = entry.get("content")
    if isinstance(content, list) and all(_is_text(part) for part in content):
        content = "".join(part["text"] for part in content)
    role = "system" if entry.get("role") == "developer" else entry.get("role")
    return entry | {"role": role, "content": content}


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _check_ids(entries: Sequence[Any]) -> None:
    """A tool's result must be that of the call before it."""
    called = None
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            continue
        answered = entry.get("tool_call_id")
        if entry.get("role") == "tool" and called is not None and answered != called:
            message = f"messages[{index}]: tool_call_id is {answered!r}, the call before it has the id {called!r}"
            raise ApiError(message, parameter="messages")
        calls = entry.get("tool_calls")
        first = calls[0] if isinstance(calls, list) and calls else None
        called = first.get("id") if isinstance(first, dict) else None


def _tools(body: _Body) -> ParameterTypes | None:
    """The tools that may be called. That one must be called cannot be promised, so it is not accepted."""
    offered = dict(_offered(entry, f"tools[{index}]") for index, entry in enumerate(body.tools or ()))
    if body.tool_choice not in (None, "auto", "none"):
        message = "tool_choice is auto or none here: the model cannot be made to call a tool"
        raise ApiError(message, code="unsupported_parameter", parameter="tool_choice")
    return offered if offered and body.tool_choice != "none" else None


def _offered(entry: Any, where: str) -> tuple[str, dict[str, str]]:
    """One function of the request, which must be a tool that the model was trained to call."""
    try:
        function = entry["function"]
        name, parameters = function["name"], function.get("parameters") or {}
        types = {key: str(value.get("type", "string")) for key, value in (parameters.get("properties") or {}).items()}
    except (TypeError, KeyError, AttributeError):
        raise ApiError(f"{where} must be a function with a name and parameters", parameter="tools") from None
    if name not in TOOLS:
        raise ApiError(
            f"{where}: the model was not trained to call {name!r}, only {', '.join(TOOLS)}", parameter="tools"
        )
    spec = TOOLS[name]
    arguments = (*spec.required, *spec.optional)
    strange = sorted(set(types) - set(arguments))
    missing = [argument for argument in spec.required if types and argument not in types]
    if strange or missing:
        message = f"{where}: {name} takes {', '.join(arguments)}; {(strange or missing)[0]!r} does not fit that"
        raise ApiError(message, parameter="tools")
    return name, types or dict.fromkeys(arguments, "string")
