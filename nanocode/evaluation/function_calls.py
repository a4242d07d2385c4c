"""One call of one foreign function: questions in the form of the Berkeley Function-Calling Leaderboard.

A file holds a JSON object a line (``id``, ``question``, ``function``), a file of the same name under
``possible_answer`` the accepted values of every argument (``id``, ``ground_truth``); an accepted ``""`` says that the
argument may be left out (Patil et al., ICML 2025; data: package bfcl-eval, Apache 2.0). A file with ``irrelevance`` in
its name has no answers: its functions do not help, and the right thing is not to call.

The comparison is exact. The leaderboard's own lower-cases strings and drops blanks and ``,./-_*^``, by which
``src/a.py`` equals ``srcapy``: figures from here are therefore stricter than those that it publishes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanocode.evaluation.intervals import Rate

# Not a type of JSON's: of no restriction, or under another name there.
_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}
_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
STAGES = ("attempted", "parsed", "right_function", "valid_arguments", "right_arguments")


class FunctionCallsError(ValueError):
    """A file of questions or answers that cannot be used. The message is one line and names the place."""


@dataclass(frozen=True)
class CallQuestion:
    """`parameters` is the function's JSON schema, `accepted` the values that each argument may have; None: no call is
    right.
    """

    id: str
    prompt: str
    name: str
    description: str
    parameters: Mapping[str, Any]
    accepted: Mapping[str, Sequence[Any]] | None

    @property
    def wire_name(self) -> str:
        """The name as endpoints take it: letters, digits, ``_`` and ``-``."""
        return re.sub(r"[^a-zA-Z0-9_-]", "_", self.name)[:64]

    def tool(self) -> dict[str, Any]:
        """The function as an OpenAI tool."""
        function = {"name": self.wire_name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class CallReply:
    """What came: nothing (`calls` 0), a call that is none (`arguments` None), or a call. `overrun`: nothing, because
    the question was too long for the model.
    """

    calls: int = 0
    name: str = ""
    arguments: Mapping[str, Any] | None = None
    overrun: bool = False


def read_questions(path: Path, limit: int | None = None) -> list[CallQuestion]:
    """The questions of a file in its order, the first `limit` of them. Raises FunctionCallsError."""
    callable_ones = "irrelevance" not in path.name
    answers_path = path.parent / "possible_answer" / path.name
    answers = {row.get("id"): row for _, row in _rows(answers_path)} if callable_ones else {}
    found = []
    for place, row in _rows(path)[:limit]:
        answer = answers.get(row.get("id"))
        if answer is None and callable_ones:
            raise FunctionCallsError(f"{answers_path} has no answer for {row.get('id')!r} of {place}")
        found.append(_question(row, answer, place))
    if not found:
        raise FunctionCallsError(f"{path} has no questions")
    return found


def stages_passed(question: CallQuestion, reply: CallReply) -> int:
    """How many of `STAGES` the reply passes, each only after those before it."""
    arguments, schema = reply.arguments, question.parameters
    if not reply.calls:
        return 0
    if arguments is None:
        return 1
    if reply.calls > 1 or reply.name not in (question.name, question.wire_name):
        return 2
    known, required = schema.get("properties", {}), schema.get("required", ())
    fits = all(name in known and _fits(value, known[name]) for name, value in arguments.items())
    if not fits or not set(required) <= set(arguments):
        return 3
    return 5 if question.accepted is not None and _accepted(arguments, question.accepted) else 4


def call_figures(questions: Sequence[CallQuestion], replies: Sequence[CallReply]) -> dict[str, Any]:
    """Each stage's rate over the questions that a call answers, the rate of calls over the others, and how many of all
    were too long for the model.
    """
    pairs = list(zip(questions, replies, strict=True))
    passed = [stages_passed(question, reply) for question, reply in pairs if question.accepted is not None]
    needless = [reply.calls > 0 for question, reply in pairs if question.accepted is None]
    stages = {
        stage: Rate(sum(each > place for each in passed), len(passed)).to_json() for place, stage in enumerate(STAGES)
    }
    return {
        "stages": stages,
        "called_needlessly": Rate(sum(needless), len(needless)).to_json(),
        "overruns": sum(reply.overrun for reply in replies),
    }


def typed(question: CallQuestion, arguments: Mapping[str, str]) -> dict[str, Any]:
    """Arguments that came as text, as this project's models write them, as values: JSON where no string is asked for.

    What is no JSON stays text, and then has the wrong type.
    """
    known = question.parameters.get("properties", {})
    return {name: _value(text, known.get(name, {}).get("type")) for name, text in arguments.items()}


def _value(text: str, type_name: str | None) -> Any:
    if type_name == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether the value has the schema's type; a boolean is no number."""
    expected = schema.get("type")
    if expected is None:
        return True
    return isinstance(value, _PYTHON_TYPES[expected]) and (not isinstance(value, bool) or expected == "boolean")


def _accepted(values: Mapping[str, Any], accepted: Mapping[str, Sequence[Any]]) -> bool:
    """Every value is one of those accepted for its name, and only what may be left out is."""
    if not set(values) <= set(accepted):
        return False
    return all(
        any(_equal(values[name], option) for option in options) if name in values else "" in options
        for name, options in accepted.items()
    )


def _equal(value: Any, option: Any) -> bool:
    """Exact equality; the members of an object are again lists of accepted values."""
    if isinstance(option, dict):
        return isinstance(value, dict) and _accepted(value, option)
    if isinstance(option, list):
        return isinstance(value, list) and len(value) == len(option) and all(map(_equal, value, option))
    return value == option and isinstance(value, bool) == isinstance(option, bool)


def _question(row: Mapping[str, Any], answer: Mapping[str, Any] | None, place: str) -> CallQuestion:
    try:
        ((message,),) = row["question"]
        (function,) = row["function"]
        name, accepted = function["name"], None
        if answer is not None:
            ((called, accepted),) = answer["ground_truth"][0].items()
            if called != name:
                raise FunctionCallsError(f"{place}: the answer calls {called!r}, the function is {name!r}")
        schema = _json_schema(function["parameters"])
        return CallQuestion(row["id"], message["content"], name, function["description"], schema, accepted)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise FunctionCallsError(f"{place} lacks what a question needs: {error!r}") from None
    except ValueError as error:
        if isinstance(error, FunctionCallsError):
            raise
        raise FunctionCallsError(f"{place} has not one message, one function and one answer: {error}") from None


def _json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The file's schema in JSON's own type names."""
    out = {key: value for key, value in schema.items() if key not in ("type", "optional")}
    type_name = _TYPES.get(schema["type"], schema["type"])
    if type_name is not None:
        if type_name not in _PYTHON_TYPES:
            raise KeyError(f"type {type_name}")
        out["type"] = type_name
    if "properties" in schema:
        out["properties"] = {name: _json_schema(member) for name, member in schema["properties"].items()}
    if "items" in schema:
        out["items"] = _json_schema(schema["items"])
    return out


def _rows(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Every line's object with its place."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FunctionCallsError(f"{path} cannot be read: {error}") from None
    found = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise FunctionCallsError(f"{path}, line {number}, is no JSON: {error}") from None
            if not isinstance(row, dict):
                raise FunctionCallsError(f"{path}, line {number}, is no object")
            found.append((f"{path}, line {number}", row))
    return found
