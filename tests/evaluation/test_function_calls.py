"""Foreign functions: the file format, exact comparison, and two ways of being asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asgi_server import listening
from typer.testing import CliRunner

from nanocode.agent.endpoint import EndpointFailure
from nanocode.cli import app
from nanocode.cli.context import Settings
from nanocode.conversation import Message, ToolCall, assistant_ids
from nanocode.evaluation.function_calls import (
    CallQuestion,
    CallReply,
    FunctionCallsError,
    call_figures,
    read_questions,
    stages_passed,
    typed,
)
from nanocode.evaluation.function_calls_asking import EndpointFunctionCaller, EngineFunctionCaller
from nanocode.tokenizer import Tokenizer

PARAMETERS = {
    "type": "dict",
    "properties": {
        "path": {"type": "string"},
        "depth": {"type": "integer"},
        "scale": {"type": "float", "optional": True},
        "deep": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "filter": {"type": "dict", "properties": {"owner": {"type": "string"}, "size": {"type": "integer"}}},
        "pair": {"type": "tuple", "items": {"type": "float"}},
        "extra": {"type": "any"},
    },
    "required": ["path", "depth"],
}
ACCEPTED = {
    "path": ["src/a.py", "./src/a.py"],
    "depth": [2],
    "scale": [1.5, 2, ""],
    "deep": [True, ""],
    "tags": [["x", "y"], ""],
    "filter": [{"owner": ["ann", "Ann"], "size": [3, ""]}, ""],
    "pair": [[1.0, 2.5], ""],
    "extra": ["any", 7, ""],
}
RIGHT = {"path": "src/a.py", "depth": 2}


def row(number: int, **changes: Any) -> dict[str, Any]:
    function = {"name": "files.find", "description": "Find files.", "parameters": PARAMETERS}
    question = [[{"role": "user", "content": f"question {number}"}]]
    return {"id": f"simple_python_{number}", "question": question, "function": [function], **changes}


def answer(number: int, **changes: Any) -> dict[str, Any]:
    return {"id": f"simple_python_{number}", "ground_truth": [{"files.find": ACCEPTED}], **changes}


def write(folder: Path, questions: list[Any], answers: list[Any]) -> Path:
    path = folder / "BFCL_v4_simple_python.json"
    (folder / "possible_answer").mkdir()
    for place, rows in ((path, questions), (folder / "possible_answer" / path.name, answers)):
        place.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in rows) + "\n")
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path, [row(0), row(1), row(2)], [answer(2), answer(1), answer(0)])


@pytest.fixture
def question(file: Path) -> CallQuestion:
    return read_questions(file)[0]


def test_a_file_is_read_in_its_order_with_jsons_own_types(file: Path) -> None:
    questions = read_questions(file)
    assert [each.prompt for each in questions] == ["question 0", "question 1", "question 2"]
    assert read_questions(file, 2) == questions[:2]
    schema = questions[0].parameters
    assert schema["type"] == "object" and schema["required"] == ["path", "depth"]
    assert schema["properties"]["scale"] == {"type": "number"}
    assert schema["properties"]["filter"]["type"] == "object" and schema["properties"]["extra"] == {}
    assert schema["properties"]["pair"] == {"type": "array", "items": {"type": "number"}}
    function = questions[0].tool()["function"]
    assert (function["name"], questions[0].name) == ("files_find", "files.find")


@pytest.mark.parametrize(
    ("questions", "answers", "said"),
    [
        ([], [], "has no questions"),
        ([row(0)], [answer(1)], "no answer for 'simple_python_0'"),
        (["{"], [], "line 1, is no JSON"),
        (["[]"], [], "line 1, is no object"),
        ([row(0, function=[])], [answer(0)], "not one message, one function and one answer"),
        ([{"id": "simple_python_0"}], [answer(0)], "line 1 lacks what a question needs"),
        ([row(0)], [answer(0, ground_truth=[])], "line 1 lacks what a question needs"),
        ([row(0)], [answer(0, ground_truth=[{"other": {}}])], "the answer calls 'other'"),
        (
            [row(0, function=[{"name": "files.find", "description": "", "parameters": {"type": "tensor"}}])],
            [answer(0)],
            "type tensor",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(
    tmp_path: Path, questions: list[Any], answers: list[Any], said: str
) -> None:
    with pytest.raises(FunctionCallsError, match=said.replace("[", r"\[")) as raised:
        read_questions(write(tmp_path, questions, answers))
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FunctionCallsError, match=r"possible_answer/none\.json cannot be read"):
        read_questions(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("reply", "passed"),
    [
        (CallReply(), 0),
        (CallReply(overrun=True), 0),
        (CallReply(1), 1),
        (CallReply(1, "other", RIGHT), 2),
        (CallReply(2, "files_find", RIGHT), 2),
        (CallReply(1, "files_find", {"path": "src/a.py"}), 3),
        (CallReply(1, "files_find", {**RIGHT, "unknown": 1}), 3),
        (CallReply(1, "files_find", {**RIGHT, "depth": "2"}), 3),
        (CallReply(1, "files_find", {**RIGHT, "depth": True}), 3),
        (CallReply(1, "files_find", {**RIGHT, "depth": 2.0}), 3),
        (CallReply(1, "files_find", {**RIGHT, "tags": "x"}), 3),
        (CallReply(1, "files_find", {**RIGHT, "path": "srcapy"}), 4),
        (CallReply(1, "files_find", {**RIGHT, "path": "SRC/a.py"}), 4),
        (CallReply(1, "files_find", {**RIGHT, "tags": ["y", "x"]}), 4),
        (CallReply(1, "files_find", {**RIGHT, "tags": ["x"]}), 4),
        (CallReply(1, "files_find", {**RIGHT, "filter": {"size": 3}}), 4),
        (CallReply(1, "files_find", {**RIGHT, "filter": {"owner": "ann", "more": 1}}), 4),
        (CallReply(1, "files_find", {**RIGHT, "deep": False}), 4),
        (CallReply(1, "files_find", RIGHT), 5),
        (CallReply(1, "files.find", RIGHT), 5),
        (CallReply(1, "files_find", {**RIGHT, "path": "./src/a.py", "scale": 2, "deep": True}), 5),
        (CallReply(1, "files_find", {**RIGHT, "filter": {"owner": "Ann"}, "tags": ["x", "y"], "pair": [1, 2.5]}), 5),
        (CallReply(1, "files_find", {**RIGHT, "extra": 7}), 5),
    ],
)
def test_the_comparison_is_exact(question: CallQuestion, reply: CallReply, passed: int) -> None:
    assert stages_passed(question, reply) == passed


def test_each_stage_counts_those_who_passed_it(question: CallQuestion) -> None:
    replies = [CallReply(1, "files_find", RIGHT), CallReply(1), CallReply(overrun=True)]
    found = call_figures([question] * 3, replies)
    assert {name: (rate["hits"], rate["n"]) for name, rate in found["stages"].items()} == {
        "attempted": (2, 3),
        "parsed": (1, 3),
        "right_function": (1, 3),
        "valid_arguments": (1, 3),
        "right_arguments": (1, 3),
    }
    assert found["overruns"] == 1


def test_where_no_call_is_right_the_calls_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "BFCL_v4_irrelevance.json"
    path.write_text("\n".join(json.dumps(row(number)) for number in range(3)) + "\n")
    questions = read_questions(path)
    assert [each.accepted for each in questions] == [None] * 3
    found = call_figures(questions, [CallReply(), CallReply(1, "files_find", RIGHT), CallReply(1)])
    assert (found["called_needlessly"]["hits"], found["called_needlessly"]["n"]) == (2, 3)
    assert found["stages"]["right_arguments"]["n"] == 0
    assert stages_passed(questions[0], CallReply(1, "files_find", RIGHT)) == 4


def test_text_becomes_the_value_that_the_schema_asks_for(question: CallQuestion) -> None:
    given = {"path": "12", "depth": "2", "tags": '["x", "y"]', "deep": "true", "scale": "much", "none": "1"}
    assert typed(question, given) == {
        "path": "12",
        "depth": 2,
        "tags": ["x", "y"],
        "deep": True,
        "scale": "much",
        "none": 1,
    }


def test_a_model_of_ours_reads_the_function_and_answers_with_its_own_call(
    file: Path, scripted: Any, tokenizer: Tokenizer
) -> None:
    asked: list[Message] = []

    def reply(conversation: list[Message], stream: int) -> list[int]:
        asked.extend(conversation)
        if conversation[0].content.endswith("question 1"):
            return [tokenizer.special["<|tool_call_start|>"]]
        call = ToolCall("files.find", {"path": "src/a.py", "depth": "2"})
        return assistant_ids(Message("assistant", "", call), tokenizer)

    questions = read_questions(file)
    replies = EngineFunctionCaller(scripted(reply)).replies(questions, 0, lambda more: None)
    assert replies == [CallReply(1, "files.find", RIGHT), CallReply(1), CallReply(1, "files.find", RIGHT)]
    assert '"name": "files.find"' in asked[0].content and asked[0].content.endswith("\n\nquestion 0")
    short = scripted(reply, context_tokens=50)
    assert EngineFunctionCaller(short).replies(questions, 0, lambda more: None) == [CallReply(overrun=True)] * 3
    assert short.batches == []


def completions(say: Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]) -> Any:
    """An endpoint: `say` gives status and body for a request's body."""

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            part = await receive()
            body += part.get("body", b"")
            if not part.get("more_body"):
                break
        status, reply = say(json.loads(body))
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(reply).encode()})

    return endpoint


def calling(*calls: tuple[str, str]) -> tuple[int, dict[str, Any]]:
    tool_calls = [
        {"id": f"c{place}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for place, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": None, "tool_calls": tool_calls or None}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    return 200, {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}


def by_question(request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    (message,) = request["messages"]
    assert request["tools"][0]["function"]["name"] == "files_find" and request["temperature"] == 0
    number = int(message["content"].split()[-1])
    right = json.dumps(RIGHT)
    if number == 1:
        return 400, {"error": {"code": "context_length_exceeded", "message": "too long"}}
    return (calling(("files_find", right)), (0, {}), calling(("files_find", right), ("files_find", right)))[number]


def test_an_endpoint_answers_by_its_own_function_calling(file: Path) -> None:
    done: list[int] = []
    with listening(completions(by_question)) as address:
        caller = EndpointFunctionCaller(f"{address}/v1", "m", max_retries=0)
        replies = caller.replies(read_questions(file), 0, done.append)
    assert replies == [
        CallReply(1, "files_find", RIGHT),
        CallReply(overrun=True),
        CallReply(2, "files_find", RIGHT),
    ]
    assert done == [1, 1, 1]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (calling(), CallReply()),
        (calling(("files_find", "{")), CallReply(1, "files_find", None)),
        (calling(("files_find", "[1]")), CallReply(1, "files_find", None)),
        ((400, {"error": {"code": "tool_use_failed", "message": "no call"}}), CallReply(1)),
    ],
)
def test_what_is_no_call_is_none(question: CallQuestion, said: Any, expected: CallReply) -> None:
    with listening(completions(lambda request: said)) as address:
        caller = EndpointFunctionCaller(f"{address}/v1", "m", max_retries=0)
        assert caller.replies([question], 0, lambda more: None) == [expected]


def test_an_endpoint_that_fails_says_so(question: CallQuestion) -> None:
    with (
        listening(completions(lambda request: (500, {"error": {"message": "broken"}}))) as address,
        pytest.raises(EndpointFailure, match="broken"),
    ):
        EndpointFunctionCaller(f"{address}/v1", "m", max_retries=0).replies([question], 0, lambda more: None)


def test_the_command_asks_the_first_questions_of_a_file(file: Path) -> None:
    with listening(completions(by_question)) as address:
        where = ["eval", "--endpoint", f"{address}/v1", "--endpoint-model", "m", "--suite", "bfcl", "--json"]
        asked = CliRunner().invoke(app, [*where, "--bfcl", str(file), "--bfcl-questions", "2"], obj=Settings())
        without = CliRunner().invoke(app, where, obj=Settings(), env={"COLUMNS": "300"})
    (theirs,) = json.loads(asked.stdout)["results"]
    rate = theirs["bfcl"]["stages"]["right_arguments"]
    assert (rate["hits"], rate["n"], theirs["bfcl"]["overruns"]) == (1, 2, 1)
    assert without.exit_code == 2 and "say where its questions are" in without.output
