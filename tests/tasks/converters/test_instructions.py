"""The three public sets of questions and answers, as rows with the columns they are published with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanocode.agent.policy import Policy
from nanocode.agent.tools import Toolbox
from nanocode.conversation import ToolCall, check_turns
from nanocode.tasks.converters.convert import CONVERTERS, convert
from nanocode.tasks.converters.plans import Converted, Dropped, Limits, MissingColumn, Row

Make = Callable[..., Converted | Dropped]

CODE = "def add(a, b):\n    return a + b\n"
ANSWER = f"Addition it is.\n\n```python\n{CODE}```\n\nIt adds two numbers."


def toolbox(workspace: Path) -> Toolbox:
    return Toolbox(workspace, Policy("auto"), None)


def rows(*values: dict[str, Any]) -> Iterable[Row]:
    return [Row(f"set.jsonl#{number}", "ODC-By-1.0", value) for number, value in enumerate(values)]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def one(kind: str, values: dict[str, Any], limits: Limits | None = None) -> Converted | Dropped:
        (outcome,) = convert(rows(values), CONVERTERS[kind], toolbox, limits, tmp_path)
        assert list(tmp_path.iterdir()) == []
        return outcome

    return one


def oss(answer: str, question: str = "Write a function that adds two numbers.") -> dict[str, Any]:
    return {
        "fingerprint": None, "sha1": "ab", "seed": "s", "response": answer, "concepts": ["sums"],
        "prompt": "few shots", "instruction": question, "id": 7,
    }  # fmt: skip


def evol(question: str, answer: str) -> dict[str, Any]:
    return {"instruction": question, "output": answer}


def calls(outcome: Converted | Dropped) -> list[ToolCall]:
    assert isinstance(outcome, Converted), outcome
    check_turns(outcome.messages)
    return [message.tool_call for message in outcome.messages if message.tool_call is not None]


def reason(outcome: Converted | Dropped) -> str:
    assert isinstance(outcome, Dropped), outcome
    return outcome.reason


def test_an_answer_with_code_creates_the_file(make: Make) -> None:
    outcome = make("self_oss_instruct", oss(ANSWER))
    assert calls(outcome) == [ToolCall("Edit", {"file_path": "add.py", "new_string": CODE})]
    assert [(message.role, message.content) for message in outcome.messages] == [
        ("user", "Write a function that adds two numbers."),
        ("assistant", "Addition it is."),
        ("tool_result", "created add.py, 2 lines"),
        ("assistant", "It adds two numbers."),
    ]
    assert outcome.row_id == "7"


def test_tulu_rows_hold_their_exchange_as_messages(make: Make) -> None:
    exchange = [{"role": "user", "content": "Add."}, {"role": "assistant", "content": ANSWER}]
    row = {"id": "personas_code_1", "prompt": "Add.", "messages": exchange}
    outcome = make("tulu_code", row)
    assert calls(outcome)[0].arguments["file_path"] == "add.py"
    assert outcome.row_id == "personas_code_1"
    assert reason(make("tulu_code", row | {"messages": exchange * 2})) == "not one question and one answer"


def test_code_without_a_fence_is_taken_when_it_parses(make: Make) -> None:
    assert calls(make("self_oss_instruct", oss(CODE)))[0].arguments["new_string"] == CODE


def test_a_file_that_the_question_names_keeps_its_name(make: Make) -> None:
    outcome = make("self_oss_instruct", oss(ANSWER, "Write `tools/sums.py` with a function add."))
    assert calls(outcome)[0].arguments["file_path"] == "tools/sums.py"


def test_a_closing_turn_that_the_row_lacks_is_marked_as_ours(make: Make) -> None:
    outcome = make("self_oss_instruct", oss(f"```python\n{CODE}```"))
    calls(outcome)
    assert outcome.messages[-1].content == "`add.py` is written."
    assert outcome.plan.notes == {"closing": "by rule"}


BEFORE = "def total(items):\n    result = 0\n    for item in items:\n        result += item\n    return reslt\n"
FIXED = BEFORE.replace("reslt", "result")
QUESTION = f"This fails, fix it:\n\n```python\n{BEFORE}```"


def test_code_on_both_sides_becomes_an_edit_after_grep_and_read(make: Make) -> None:
    outcome = make("evol_codealpaca", evol(QUESTION, f"A typo.\n\n```python\n{FIXED}```"))
    assert calls(outcome) == [
        ToolCall("Grep", {"pattern": "def total"}),
        ToolCall("Read", {"file_path": "total.py"}),
        ToolCall(
            "Edit", {"file_path": "total.py", "old_string": "    return reslt", "new_string": "    return result"}
        ),
    ]
    assert [message.content for message in outcome.messages if message.role != "assistant"] == [
        "This fails, fix it:\n\n`total.py`",
        "total.py:1:def total(items):",
        "    1→def total(items):\n    2→    result = 0\n    3→    for item in items:\n"
        "    4→        result += item\n    5→    return reslt",
        "edited total.py, line 5",
    ]
    assert outcome.plan.expected == {"total.py": FIXED}


def test_several_changes_are_several_edits(make: Make) -> None:
    before = "".join(f"def f{number}(x):\n    return x + {number}\n\n" for number in range(6))
    after = before.replace("x + 1", "x - 1").replace("x + 4", "x - 4")
    outcome = make("evol_codealpaca", evol(f"Subtract.\n```python\n{before}```", f"```python\n{after}```\nDone."))
    assert [call.name for call in calls(outcome)] == ["Grep", "Read", "Edit", "Edit"]


def test_of_a_long_file_the_changed_part_is_read(make: Make) -> None:
    before = "".join(f"value_{number} = {number}\n" for number in range(150))
    after = before.replace("value_120 = 120", "value_120 = 0")
    outcome = make("evol_codealpaca", evol(f"Zero it.\n```python\n{before}```", f"```python\n{after}```"))
    reading = calls(outcome)[1].arguments
    assert (reading["offset"], reading["limit"]) == ("111", "21")


def test_a_translation_is_a_new_file(make: Make) -> None:
    script = "function total(items) {\n  return items.reduce((a, b) => a + b, 0);\n}\n"
    outcome = make("evol_codealpaca", evol(QUESTION, f"```javascript\n{script}```\nSame thing."))
    assert calls(outcome) == [ToolCall("Edit", {"file_path": "total.js", "new_string": script})]
    assert outcome.messages[0].content == QUESTION


NUMBERED = "    1→def add(a, b):\n    2→    return a + b\n"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (oss("Just use the plus sign."), "no code block"),
        (oss(f"```python\n{CODE}```\n```java\nclass Add {{ int x; }}\n```"), "two languages"),
        (oss(f"```python\n{CODE}"), "code block is not closed"),
        (oss("```python\nx = 1\n```"), "code is too short"),
        (oss("```python\n" + CODE * 101 + "```"), "code is too long"),
        (oss("```python\ndef add(a, b:\n    return a + b\n```"), "Python does not parse"),
        (oss("```brainfuck\n+++++++++[>+++++++<-]>.<<<<\n```"), "unknown language"),
        (oss("sums \ud800 " + ANSWER), "not UTF-8"),
        (oss(ANSWER.replace("\n", "\r")), "control characters"),
        (oss(None), "not text"),  # type: ignore[arg-type]
        (oss(ANSWER, "  "), "no question"),
        (oss(ANSWER, "Напишите функцию, которая складывает два числа и возвращает сумму."), "prose is not ASCII"),
        (oss(f"```text\n{NUMBERED}```\n"), "no code block"),
        (oss(f"```go\n{NUMBERED}```\n"), "Edit fails"),
    ],
)
def test_a_row_that_makes_no_conversation_says_why(make: Make, values: dict[str, Any], expected: str) -> None:
    assert reason(make("self_oss_instruct", values)) == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (BEFORE, BEFORE, "the code does not change"),
        ("x = 1\n" * 60, "x = 1\n" * 30 + "y = 2\n" + "x = 1\n" * 30, "not unique"),
    ],
)
def test_a_change_that_makes_no_conversation_says_why(make: Make, before: str, after: str, expected: str) -> None:
    question, answer = f"Change it.\n```python\n{before}```", f"```python\n{after}```"
    assert reason(make("evol_codealpaca", evol(question, answer))) == expected


def test_a_missing_column_names_itself_and_those_there_are(make: Make) -> None:
    with pytest.raises(MissingColumn, match=r"set.jsonl#0 has no column 'output'; there are: instruction, text"):
        make("evol_codealpaca", {"instruction": "x", "text": "y"})


def test_rows_are_taken_one_at_a_time(tmp_path: Path) -> None:
    """A set larger than memory: the next row is read only when the one before has been handed out."""
    read = []

    def counted() -> Iterable[Row]:
        for row in rows(*[oss(ANSWER)] * 3):
            read.append(row.origin)
            yield row

    outcomes = convert(counted(), CONVERTERS["self_oss_instruct"], toolbox, scratch=tmp_path)
    next(iter(outcomes))
    assert read == ["set.jsonl#0"]


PIECES = st.sampled_from(
    ["```python\n", "```\n", "```", "~~~js\n", "\n", "def f(x):\n    return x + 1\n", "x = 1\n", "text ", "`a.py` ",
     "\u2028", "    1→", "\f", "\r\n", "class A:\n", "const a = 1;\n", "é"]
)  # fmt: skip
MARKDOWN = st.lists(PIECES, max_size=10).map("".join)


@settings(max_examples=200, deadline=None)
@given(MARKDOWN, MARKDOWN)
def test_whatever_a_row_says_it_is_converted_or_dropped(question: str, answer: str) -> None:
    (outcome,) = convert(rows(evol(question, answer)), CONVERTERS["evol_codealpaca"], toolbox)
    assert isinstance(outcome, (Converted, Dropped))
    if isinstance(outcome, Converted):
        check_turns(outcome.messages)
