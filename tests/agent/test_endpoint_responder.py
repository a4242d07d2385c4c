"""The agent's loop against OpenAI-compatible endpoints: the teacher, our own server, and servers that misbehave."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from asgi_server import listening
from scripted_server import MODEL, serving
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from nanocode.agent.endpoint import EndpointFailure, EndpointResponder, tool_functions
from nanocode.agent.policy import Policy
from nanocode.agent.session import Session, TextDelta
from nanocode.agent.tools import TOOLS, Toolbox
from nanocode.constitution import prompts
from nanocode.constitution.soul import Soul
from nanocode.constitution.wire import from_openai
from nanocode.conversation import MalformedReply, Message, ToolCall
from nanocode.inference.cut import CutReply
from nanocode.inference.overflow import ContextOverflow
from nanocode.serving.gate import Access
from nanocode.serving.teacher import MODEL as TEACHER
from nanocode.serving.teacher import create_app
from nanocode.tasks.registry import sample_tasks
from nanocode.tasks.task import check, prepare

SOUL = Soul.load(Path(__file__).parents[2] / "configs" / "SOUL.md")
HELLO = [Message("user", "hello")]
KEY = "sk-very-secret"


def event(**choice: Any) -> str:
    filled = {"index": 0, "delta": {}, "finish_reason": None} | choice
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [filled]}
    return f"data: {json.dumps(chunk)}\n\n"


def call_event(index: int, name: str, arguments: str) -> str:
    function = {"name": name, "arguments": arguments}
    return event(delta={"tool_calls": [{"index": index, "id": f"c{index}", "type": "function", "function": function}]})


END = event(finish_reason="stop") + "data: [DONE]\n\n"


@contextmanager
def answering(reply: Callable[[dict[str, Any]], Response]) -> Iterator[str]:
    """A server that answers every request with `reply(body)`; its base URL."""

    async def completions(request: Any) -> Response:
        return reply(await request.json())

    with listening(Starlette(routes=[Route("/v1/chat/completions", completions, methods=["POST"])])) as address:
        yield f"{address}/v1"


def replies(*events: str) -> Callable[[dict[str, Any]], Response]:
    return lambda body: Response("".join(events), media_type="text/event-stream")


def refuses(status: int, message: str, code: str | None = None) -> Callable[[dict[str, Any]], Response]:
    return lambda body: JSONResponse({"error": {"message": message, "type": "x", "code": code}}, status)


def responder(base_url: str, model: str = "m", **options: Any) -> EndpointResponder:
    return EndpointResponder(base_url, model, KEY, max_retries=0, **options)


@pytest.mark.parametrize("family", ["read", "edit", "create", "grep"])
def test_the_loop_solves_tasks_with_the_teacher_behind_it(tmp_path: Path, family: str) -> None:
    (task,) = sample_tasks("sft", 1, seed=1, families=[family])
    prepare(task, tmp_path)
    with listening(create_app(SOUL)) as address:
        system = prompts.system_prompt("generator", SOUL)
        session = Session(
            EndpointResponder(f"{address}/v1", TEACHER, seed=1, system=system),
            Toolbox(tmp_path, Policy(mode="auto"), None),
        )
        outcome = session.run(task.prompt)
    assert outcome.stop_reason == "finished" and outcome.calls
    assert check(task, outcome.conversation, tmp_path).success


def test_the_loop_runs_against_the_projects_own_server(tokenizer, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")

    def say(conversation: list[Message]) -> Message:
        if conversation[-1].role == "user":
            return Message("assistant", "looking ", ToolCall("Read", {"file_path": "a.py", "offset": "1"}))
        return Message("assistant", f"it says {conversation[-1].content.strip()}")

    with serving(tokenizer, say) as address:
        answering_model = responder(f"{address}/v1", MODEL)
        session = Session(answering_model, Toolbox(tmp_path, Policy(mode="auto"), None))
        events = list(session.send("what is in a.py?"))
    assert session.conversation[1:] == (
        Message("assistant", "looking ", ToolCall("Read", {"file_path": "a.py", "offset": "1"})),
        Message("tool_result", "    1→x = 1"),
        Message("assistant", "it says 1→x = 1"),
    )
    pieces = [event.text for event in events if isinstance(event, TextDelta)]
    assert "".join(pieces) == "looking it says 1→x = 1" and len(pieces) > 4


def test_the_four_tools_are_offered_with_every_argument_described() -> None:
    functions = {entry["function"]["name"]: entry["function"]["parameters"] for entry in tool_functions()}
    assert list(functions) == list(TOOLS)
    for name, parameters in functions.items():
        assert set(parameters["properties"]) == {*TOOLS[name].required, *TOOLS[name].optional}
        assert parameters["required"] == list(TOOLS[name].required)
        assert all(each["type"] == "string" and each["description"] for each in parameters["properties"].values())


def test_what_is_asked() -> None:
    seen = []

    def reply(body: dict[str, Any]) -> Response:
        seen.append(body)
        return replies(event(delta={"content": "ok"}), END)(body)

    history = [
        Message("user", "read"),
        Message("assistant", "", ToolCall("Read", {"file_path": "a"})),
        Message("tool_result", "x"),
    ]
    with answering(reply) as base_url:
        responder(base_url, max_new_tokens=7, temperature=0.5, seed=3, system="be brief").respond(history)
    (body,) = seen
    assert body["messages"][0] == {"role": "system", "content": "be brief"}
    assert from_openai(body["messages"][1:]) == history
    assert (body["max_tokens"], body["temperature"], body["seed"]) == (7, 0.5, 3)
    assert (body["parallel_tool_calls"], body["stream"], body["model"]) == (False, True, "m")


def test_of_several_calls_the_first_counts_and_the_history_holds_no_other() -> None:
    several = (call_event(0, "Read", '{"file_path": "a"}'), call_event(1, "Bash", '{"command": "rm"}'), END)
    with answering(replies(event(delta={"content": "so "}), *several)) as base_url:
        message = responder(base_url).respond(HELLO)
    assert message == Message("assistant", "so ", ToolCall("Read", {"file_path": "a"}))


def test_arguments_in_pieces_and_numbers_become_strings() -> None:
    pieces = [call_event(0, "Read", '{"file_pa'), call_event(0, "", 'th": "a", "offset": 12, "limit": "3"}'), END]
    with answering(replies(*pieces)) as base_url:
        message = responder(base_url).respond(HELLO)
    assert message.tool_call == ToolCall("Read", {"file_path": "a", "offset": "12", "limit": "3"})


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ('{"file_path": ', "the arguments of Read are not JSON"),
        ('["a"]', "needs a name and an object of arguments"),
        ('{"file_path": ["a"]}', "the argument 'file_path' of Read must be a string"),
        ('{"file_path": null}', "the argument 'file_path' of Read must be a string"),
    ],
)
def test_a_malformed_call_is_told_with_what_can_be_saved(arguments: str, fault: str) -> None:
    with (
        answering(replies(event(delta={"content": "now"}), call_event(0, "Read", arguments), END)) as base_url,
        pytest.raises(MalformedReply, match=fault) as caught,
    ):
        responder(base_url).respond(HELLO)
    assert caught.value.salvaged == Message("assistant", "now", ToolCall("Read"))


@pytest.mark.parametrize(("reason", "why"), [("length", "its length"), ("content_filter", "content filter")])
def test_a_reply_that_the_endpoint_cut_is_told_as_such(reason: str, why: str) -> None:
    ended = event(finish_reason=reason) + "data: [DONE]\n\n"
    with answering(replies(event(delta={"content": "half a sen"}), ended)) as base_url:
        message = responder(base_url).respond(HELLO)
    assert isinstance(message, CutReply) and message.content == "half a sen" and why in message.why
    call = call_event(0, "Read", '{"file_path": ')
    with answering(replies(call, ended)) as base_url, pytest.raises(MalformedReply, match=r"^cut off by .*not JSON"):
        responder(base_url).respond(HELLO)
    whole = call_event(0, "Read", '{"file_path": "a"}')
    with answering(replies(whole, ended)) as base_url:
        assert responder(base_url).respond(HELLO) == Message("assistant", "", ToolCall("Read", {"file_path": "a"}))


def test_a_character_that_comes_in_halves_is_whole() -> None:
    halves = [event(delta={"content": half}) for half in ("a\ud83d", "\ude42b", "\ude42", "c")]
    call = [call_event(0, "Read", '{"file_path": "\ud83d'), call_event(0, "", '\ude42"}')]
    with answering(replies(*halves, *call, END)) as base_url:
        *pieces, message = responder(base_url).stream(HELLO)
    assert message == Message("assistant", "a🙂b�c", ToolCall("Read", {"file_path": "🙂"}))
    assert "".join(pieces) == message.content and all(piece.encode() for piece in pieces)


def test_half_a_character_in_a_call_is_a_malformed_call() -> None:
    with (
        answering(replies(call_event(0, "Read", '{"file_path": "\\ud83d"}'), END)) as base_url,
        pytest.raises(MalformedReply, match="half of a surrogate pair"),
    ):
        responder(base_url).respond(HELLO)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (refuses(401, f"bad key {KEY}"), r"wants a key and it refused the one it was given.*\(bad key \*\*\*\)"),
        (refuses(404, "model m not found"), "has no such model, or nothing at this address: model m not found"),
        (refuses(429, "slow down"), "too busy or out of quota: slow down"),
        (refuses(400, "m does not support tools"), "takes no tools, which the agent needs"),
        (refuses(500, "oh\nno"), "failed: oh no"),
        (replies(event(delta={"content": "half"})), "sent no whole answer"),
        (replies("data: {broken\n\n"), "no stream of JSON"),
        (lambda body: JSONResponse({"choices": []}), "sent no whole answer"),
    ],
)
def test_an_endpoint_that_gives_no_answer_is_one_clear_line(reply: Any, said: str) -> None:
    with answering(reply) as base_url, pytest.raises(EndpointFailure, match=said) as caught:
        responder(base_url).respond(HELLO)
    assert "\n" not in str(caught.value) and KEY not in str(caught.value)
    assert str(caught.value).startswith(f"{base_url} (m) ")
    # The client's own error holds the request with its key: it must not hang on.
    assert caught.value.__cause__ is None and (caught.value.__context__ is None or caught.value.__suppress_context__)


def test_nobody_at_the_address_is_said_so() -> None:
    with pytest.raises(EndpointFailure, match=r"cannot be reached .*check the address"):
        responder("http://127.0.0.1:9/v1").respond(HELLO)


def test_a_missing_key_is_named_as_missing(tokenizer) -> None:
    with serving(tokenizer, lambda said: Message("assistant", "ok"), access=Access(None, "secret")) as address:
        keyless = EndpointResponder(f"{address}/v1", MODEL, None, max_retries=0)
        with pytest.raises(EndpointFailure, match="wants a key and it was given none"):
            keyless.respond(HELLO)
        assert EndpointResponder(f"{address}/v1", MODEL, "secret").respond(HELLO).content == "ok"


def test_what_passes_is_tried_again() -> None:
    left = [429, 503]

    def reply(body: dict[str, Any]) -> Response:
        if left:
            return Response(status_code=left.pop(0), headers={"retry-after-ms": "1"})
        return replies(event(delta={"content": "ok"}), END)(body)

    with answering(reply) as base_url:
        assert EndpointResponder(base_url, "m", KEY, max_retries=2).respond(HELLO).content == "ok"


@pytest.mark.parametrize(
    "reply",
    [refuses(400, "too long", "context_length_exceeded"), refuses(400, "this model's maximum context length is 9")],
)
def test_a_conversation_too_long_for_it_is_a_context_overflow(reply: Any) -> None:
    with answering(reply) as base_url, pytest.raises(ContextOverflow):
        responder(base_url).respond(HELLO)
