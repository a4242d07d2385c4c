"""Any model behind the agent: the session's responder over an OpenAI-compatible endpoint.

The conversation goes out in OpenAI's chat form with the four tools as functions; what comes back becomes one assistant
message of nanocode's grammar. One call a turn is asked for. An endpoint that sends more gets the first one carried out,
and the history that it sees next holds that one alone: nothing claims that the others ran.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import openai
from openai import OpenAI, omit

from nanocode.agent.results import valid_text
from nanocode.constitution.prompts import tool_schemas
from nanocode.constitution.wire import WireError, message_from_reply, to_openai
from nanocode.conversation import MalformedReply, Message, ToolCall
from nanocode.inference.cut import CutReply
from nanocode.inference.overflow import ContextOverflow

SYSTEM = """\
You work as a coding agent on the files of one workspace. Paths count from its root. Use the functions to look before
you change anything, one call at a time, and read each result before the next step. Once the task is done, or when it
needs no function, reply with a sentence or two and no call. When the request leaves out what you need, ask."""

MAX_RETRIES = 4
TIMEOUT_SECONDS = 120.0
_SHOWN_CHARACTERS = 200
# Reasons of an endpoint for an end that the model did not choose.
_CUTS: Mapping[str | None, str] = {
    "length": "cut off by the endpoint's bound on its length",
    "content_filter": "cut off by the endpoint's content filter",
}
_ARGUMENTS: Mapping[str, str] = {
    "file_path": "Path of the file, relative to the workspace.",
    "path": "File or folder to search, relative to the workspace; left out: all of it.",
    "offset": "Number of the first line to show, from 1.",
    "limit": "How many lines to show.",
    "old_string": "Text to replace, exactly as it stands in the file and only once; left out: create the file.",
    "new_string": "Text to put there.",
    "pattern": "Regular expression.",
    "command": "What to run in a shell.",
}


class EndpointFailure(RuntimeError):
    """The endpoint gives no answer, whatever is said to it. The message is one line with the cure, without the key."""


def tool_functions() -> list[dict[str, Any]]:
    """The four tools as OpenAI functions; every argument is a string, as in the format that models are trained on."""
    functions = tool_schemas()
    for entry in functions:
        for name, described in entry["function"]["parameters"]["properties"].items():
            described["description"] = _ARGUMENTS[name]
    return functions


@dataclass
class _Pieces:
    """A streamed reply while it comes: text, the calls by index, and why it ended."""

    text: str = ""
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    reason: str | None = None
    _half: str = ""

    def add(self, choice: Any) -> str:
        """Take a chunk's choice; returns its text."""
        for part in choice.delta.tool_calls or ():
            call = self.calls.setdefault(part.index, {"name": "", "arguments": ""})
            if part.function is not None:
                call["name"] += part.function.name or ""
                call["arguments"] += part.function.arguments or ""
        self.reason = choice.finish_reason or self.reason
        said = self._half + (choice.delta.content or "")
        # Endpoints that cut between UTF-16 units send a character in two halves.
        self._half = said[-1:] if "\ud800" <= said[-1:] <= "\udbff" else ""
        piece = valid_text(said[: len(said) - len(self._half)])
        self.text += piece
        return piece

    def first_call(self) -> dict[str, str] | None:
        """The call that counts."""
        return {key: valid_text(value) for key, value in self.calls[min(self.calls)].items()} if self.calls else None


class EndpointResponder:
    """Answers for the model called `model` at `base_url`. `api_key` None: for an endpoint that asks for none.

    Retries (429, 5xx, lost connections) and their backoff are the client's, up to `max_retries`. `seed` and
    `temperature` None are left to the endpoint. `system` opens the conversation unless it has a system message.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        *,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        seed: int | None = None,
        system: str | None = SYSTEM,
        max_retries: int = MAX_RETRIES,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self.base_url, self.model = base_url, model
        self._key, self._system = api_key, system
        self._request = {
            "max_tokens": omit if max_new_tokens is None else max_new_tokens,
            "temperature": omit if temperature is None else temperature,
            "seed": omit if seed is None else seed,
            "parallel_tool_calls": False,
            "tools": tool_functions(),
        }
        self._client = OpenAI(
            base_url=base_url, api_key=api_key or "none", max_retries=max_retries, timeout=timeout_seconds
        )

    def respond(self, conversation: Sequence[Message]) -> Message:
        """The next assistant message, a CutReply where the endpoint says so. Raises as `stream` does."""
        message: Message | None = None
        for piece in self.stream(conversation):
            if isinstance(piece, Message):
                message = piece
        assert message is not None
        return message

    def stream(self, conversation: Sequence[Message]) -> Iterator[str | Message]:
        """Pieces of text as they come, then the whole message.

        Raises MalformedReply for a call that is none, ContextOverflow when the conversation is too long for the
        endpoint, EndpointFailure when it does not answer.
        """
        pieces = _Pieces()
        try:
            with self._client.chat.completions.create(
                model=self.model,
                messages=self._messages(conversation),
                stream=True,
                **self._request,  # type: ignore[call-overload]
            ) as chunks:
                for chunk in chunks:
                    for choice in chunk.choices[:1]:
                        if piece := pieces.add(choice):
                            yield piece
        except openai.OpenAIError as error:
            raise self._failure(error, pieces.text) from None
        except json.JSONDecodeError:
            raise EndpointFailure(self._said("sent something that is no stream of JSON: check the address")) from None
        if pieces.reason is None:
            raise EndpointFailure(self._said("sent no whole answer: is it an OpenAI-compatible endpoint that streams?"))
        yield _message(pieces)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _messages(self, conversation: Sequence[Message]) -> list[dict[str, Any]]:
        messages = to_openai(conversation)
        if self._system is not None and (not messages or messages[0]["role"] != "system"):
            # Ids of calls are positions: the system message goes in front afterwards.
            messages.insert(0, {"role": "system", "content": self._system})
        return messages

    def _failure(self, error: openai.OpenAIError, text: str) -> Exception:
        """What an error of the client means here."""
        code, message = _told(error)
        said = self._shown(message)
        if code == "tool_use_failed":
            return _malformed(said, text)
        if code == "context_length_exceeded" or "maximum context length" in said:
            return ContextOverflow(self._said(said))
        return EndpointFailure(self._said(self._refusal(error, said)))

    def _refusal(self, error: openai.OpenAIError, said: str) -> str:
        if isinstance(error, openai.APITimeoutError):
            return "did not answer in time: try again, or give it longer"
        if isinstance(error, openai.APIConnectionError):
            cause = self._shown(str(error.__cause__ or error))
            return f"cannot be reached ({cause}): check the address and that it is running"
        if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
            given = "it was given none" if self._key is None else "it refused the one it was given"
            return f"wants a key and {given}: check the variable that holds it ({said})"
        if isinstance(error, openai.NotFoundError):
            return f"has no such model, or nothing at this address: {said}"
        if isinstance(error, openai.RateLimitError):
            return f"is too busy or out of quota: {said}"
        if isinstance(error, openai.BadRequestError | openai.UnprocessableEntityError) and "tool" in said.lower():
            return f"takes no tools, which the agent needs: {said}"
        return f"failed: {said}"

    def _said(self, what: str) -> str:
        return f"{self.base_url} ({self.model}) {what}"

    def _shown(self, text: str) -> str:
        """One short line of somebody else's words, without the key."""
        line = " ".join(text.split())
        return (line.replace(self._key, "***") if self._key else line)[:_SHOWN_CHARACTERS]


def _told(error: openai.OpenAIError) -> tuple[str | None, str]:
    """The code and the words of the endpoint itself, where it gave any."""
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, Mapping) else None
    if not isinstance(inner, Mapping):
        return getattr(error, "code", None), str(inner or error)
    code = inner.get("code")
    return None if code is None else str(code), str(inner.get("message") or error)


def _message(pieces: _Pieces) -> Message:
    """The reply as a message; a whole call is one, whatever cut off the rest. Raises MalformedReply."""
    call, cut = pieces.first_call(), _CUTS.get(pieces.reason, "")
    if call is None:
        return CutReply("assistant", pieces.text, why=cut) if cut else Message("assistant", pieces.text)
    try:
        return message_from_reply({"content": pieces.text, "tool_calls": [{"function": call}]}, "the reply")
    except WireError as error:
        raise _malformed(f"{cut}: {error}" if cut else str(error), pieces.text, call["name"]) from None


def _malformed(fault: str, text: str, name: str = "") -> MalformedReply:
    return MalformedReply(fault, Message("assistant", text, ToolCall(name)))
