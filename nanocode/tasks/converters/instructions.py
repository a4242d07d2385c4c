"""Question and answer with code in them: the answer's code becomes a file that Edit creates, or a change to a file.

A change is made where the question brings code of the same language that the answer alters: the code is put into the
workspace, the question then names the file in its place, and Grep and Read come before the edits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nanocode.agent.tools import DEFAULT_READ_LINES
from nanocode.conversation import Message, ToolCall
from nanocode.tasks.converters.code_blocks import (
    Block,
    blocks_of,
    check_code,
    definition_above,
    file_name,
    guess_language,
    main_block,
)
from nanocode.tasks.converters.diffs import NoUniqueContext, TextEdit, edits_between, lines_of, shared_lines
from nanocode.tasks.converters.plans import Drop, Limits, Plan, check_prose, text_of

# Below it the answer is a new program, and edits would quote all of the old one.
MIN_SHARED_LINES = 0.2
READ_AROUND_LINES = 10
# Of the code that Read is to show at once: its results are capped, and what is changed must have been seen.
MAX_READ_CHARACTERS = 3_500


@dataclass(frozen=True)
class QuestionAnswer:
    """A converter of rows that hold one question and one answer; `read` finds them and may raise Drop."""

    columns: tuple[str, ...]
    read: Callable[[Mapping[str, Any]], tuple[str, str]]
    id_columns: tuple[str, ...] = ()
    changes: bool = False

    def plan(self, values: Mapping[str, Any], limits: Limits) -> Plan:
        """Raises Drop."""
        question, answer = self.read(values)
        if not question.strip():
            raise Drop("no question")
        block = main_block(answer)
        if not block.language:
            block = Block(guess_language(block.code), block.code, block.start, block.stop)
        check_code(block.code, block.language, limits.max_code_lines)
        check_prose(question[: _code_start(question)] + answer[: block.start] + answer[block.stop :], limits)
        if self.changes:
            given = _given_code(question, block.language)
            if given is not None and given.code == block.code:
                raise Drop("the code does not change")
            if given is not None and shared_lines(given.code, block.code) >= MIN_SHARED_LINES:
                return _change(question, given, answer, block, limits)
        return _creation(question, answer, block)


def _creation(question: str, answer: str, block: Block) -> Plan:
    path = file_name(block.code, block.language, question)
    create = ToolCall("Edit", {"file_path": path, "new_string": block.code})
    before, after, notes = _texts(answer, block, path, "written")
    turns = (
        Message("user", question.strip()),
        Message("assistant", before, create),
        Message("assistant", after),
    )
    return Plan("create", {}, turns, {path: block.code}, notes=notes)


def _change(question: str, given: Block, answer: str, block: Block, limits: Limits) -> Plan:
    if len(lines_of(given.code)) > limits.max_code_lines:
        raise Drop("code is too long")
    try:
        edits = edits_between(given.code, block.code, limits.max_context_lines)
    except NoUniqueContext as error:
        raise Drop("not unique", str(error)) from None
    path = file_name(given.code, block.language, question[: given.start] + question[given.stop :])
    before, after, notes = _texts(answer, block, path, "changed")
    first, *others = [_edit_call(path, edit) for edit in edits]
    asked = f"{question[: given.start]}`{path}`{question[given.stop :]}".strip()
    turns = (
        Message("user", asked),
        *(Message("assistant", "", call) for call in _looking(path, given.code, edits)),
        Message("assistant", before, first),
        *(Message("assistant", "", call) for call in others),
        Message("assistant", after),
    )
    notes = notes | {"prompt": "code replaced by its file's name"}
    return Plan("change", {path: given.code}, turns, {path: block.code}, notes=notes)


def _edit_call(path: str, edit: TextEdit) -> ToolCall:
    return ToolCall("Edit", {"file_path": path, "old_string": edit.old, "new_string": edit.new})


def _looking(path: str, code: str, edits: list[TextEdit]) -> list[ToolCall]:
    """Grep for what is to change, then Read the part of the file that the edits replace."""
    lines = code.split("\n")
    first, last = edits[0].start, edits[-1].stop
    pattern = _search_word(lines, first)
    reading = {"file_path": path}
    if len(lines_of(code)) > DEFAULT_READ_LINES or len(code) > MAX_READ_CHARACTERS:
        offset = max(0, first - READ_AROUND_LINES)
        shown = lines[offset : last + READ_AROUND_LINES]
        if len(shown) > DEFAULT_READ_LINES or sum(map(len, shown)) + len(shown) > MAX_READ_CHARACTERS:
            raise Drop("change is too spread out to read at once")
        reading |= {"offset": str(offset + 1), "limit": str(len(shown))}
    return [ToolCall("Grep", {"pattern": pattern}), ToolCall("Read", reading)]


def _search_word(lines: list[str], index: int) -> str:
    """A pattern that finds the place: the definition around it, else the longest word on or above the line."""
    definition = definition_above(lines, min(index, len(lines) - 1))
    if definition is not None:
        return re.escape(definition).replace("\\ ", " ")
    for line in reversed(lines[: index + 1]):
        words = re.findall(r"[A-Za-z_]\w{2,}", line)
        if words:
            return max(words, key=len)
    raise Drop("nothing to search for")


def _texts(answer: str, block: Block, path: str, done: str) -> tuple[str, str, dict[str, Any]]:
    """The answer's words before and after its code; a last turn must say something, and then a rule says it."""
    before, after = answer[: block.start].strip(), answer[block.stop :].strip()
    if after:
        return before, after, {}
    return before, f"`{path}` is {done}.", {"closing": "by rule"}


def _given_code(question: str, language: str) -> Block | None:
    """The longest block of the question in that language, or in none that it says."""
    fitting = [block for block in blocks_of(question) if block.language in (language, "") and block.code.strip()]
    return max(fitting, key=lambda block: len(block.code), default=None)


def _code_start(question: str) -> int:
    found = question.find("```")
    return len(question) if found < 0 else found


def _one_exchange(values: Mapping[str, Any]) -> tuple[str, str]:
    messages = values["messages"]
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise Drop("not messages")
    turns = [(message.get("role"), message.get("content")) for message in messages if message.get("role") != "system"]
    if [role for role, _ in turns] != ["user", "assistant"]:
        raise Drop("not one question and one answer")
    return text_of(turns[0][1]), text_of(turns[1][1])


def _columns(question: str, answer: str) -> Callable[[Mapping[str, Any]], tuple[str, str]]:
    return lambda values: (text_of(values[question]), text_of(values[answer]))


# Columns as published: allenai/tulu-3-sft-personas-code, bigcode/self-oss-instruct-sc2-exec-filter-50k,
# theblackcat102/evol-codealpaca-v1.
TULU_CODE = QuestionAnswer(("messages",), _one_exchange, ("id",))
SELF_OSS_INSTRUCT = QuestionAnswer(("instruction", "response"), _columns("instruction", "response"), ("id", "sha1"))
EVOL_CODEALPACA = QuestionAnswer(("instruction", "output"), _columns("instruction", "output"), changes=True)
