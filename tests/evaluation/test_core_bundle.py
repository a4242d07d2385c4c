"""CORE's bundle: what is read is what is there, and every fault names its file and line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nanocode.evaluation.benchmarks import BenchmarkError, read_rows
from nanocode.evaluation.core.bundle import Bundle, read_bundle

TASKS = """icl_tasks:
- {label: quiz, dataset_uri: a/quiz.jsonl, num_fewshot: [1], icl_task_type: multiple_choice}
- {label: who, dataset_uri: who.jsonl, num_fewshot: [0], icl_task_type: schema, continuation_delimiter: "", other: 1}
- {label: next, dataset_uri: next.jsonl, num_fewshot: [2], icl_task_type: language_modeling}
"""
BASELINES = "Eval Task,Task Category,Random baseline\nquiz,x,25\nwho,x,50\nnext,x,0\nunused,x,62\n"
QUIZ = [{"query": f"q{number}", "choices": ["a", "b", "c", "d"], "gold": number % 4} for number in range(5)]
WHO = [{"context_options": [f"A{number}", f"B{number}"], "continuation": " slept", "gold": 1} for number in range(3)]
NEXT = [{"context": f" one {number}  ", "continuation": "two"} for number in range(4)]


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def bundle(tmp_path: Path) -> Callable[..., Path]:
    """`bundle({name: text})`: a whole bundle with these files in place of its own; None leaves one out."""

    def write(changed: dict[str, str | bytes | None] | None = None) -> Path:
        files: dict[str, str | bytes | None] = {
            "core.yaml": TASKS,
            "eval_meta_data.csv": BASELINES,
            "eval_data/a/quiz.jsonl": lines(QUIZ),
            "eval_data/who.jsonl": lines(WHO),
            "eval_data/next.jsonl": lines(NEXT),
        }
        for name, content in (files | (changed or {})).items():
            if content is not None:
                (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return tmp_path

    return write


def test_tasks_are_read_with_their_settings_and_their_chance(bundle: Callable[..., Path]) -> None:
    read = read_bundle(bundle())
    assert [(task.label, task.kind, task.shots, task.delimiter, task.baseline) for task in read.tasks] == [
        ("quiz", "multiple_choice", 1, " ", 0.25),
        ("who", "schema", 0, "", 0.5),
        ("next", "language_modeling", 2, " ", 0.0),
    ]
    assert read.files == (
        "core.yaml", "eval_data/a/quiz.jsonl", "eval_data/next.jsonl", "eval_data/who.jsonl", "eval_meta_data.csv",
    )  # fmt: skip
    quiz, who, following = (task.items[0] for task in read.tasks)
    assert {context for context, _ in quiz.options} <= {f"q{number}" for number in range(5)}
    assert [continuation for _, continuation in quiz.options] == ["a", "b", "c", "d"]
    assert (who.gold, {continuation for _, continuation in who.options}) == (1, {" slept"})
    assert following.options[0][0].startswith("one") and following.options[0][1] == "two"


def test_rows_stand_in_one_shuffled_order_however_many_are_taken(bundle: Callable[..., Path]) -> None:
    read = read_bundle(bundle())
    quiz = read.tasks[0]
    assert sorted(item.options[0][0] for item in quiz.items) == [row["query"] for row in QUIZ]
    # random.Random(1337).shuffle(list(range(5))), as everybody who publishes CORE has it
    assert [item.options[0][0] for item in quiz.items] == ["q1", "q0", "q3", "q2", "q4"]
    assert quiz.first(3).items == quiz.items[:3]
    assert (read.items(None), read.items(3), read.items(4)) == (12, 9, 11)


def test_a_task_needs_more_rows_than_it_shows(bundle: Callable[..., Path]) -> None:
    (_, _, following) = read_bundle(bundle()).tasks
    with pytest.raises(BenchmarkError, match=r"next.jsonl: 2 rows of next are too few.* take at least 3"):
        following.first(2)


def test_the_digest_is_of_the_content_and_not_of_the_place(bundle: Callable[..., Path], tmp_path: Path) -> None:
    here = read_bundle(bundle())
    elsewhere = tmp_path / "elsewhere"
    for name in here.files:
        (elsewhere / name).parent.mkdir(parents=True, exist_ok=True)
        (elsewhere / name).write_bytes((here.folder / name).read_bytes())
    (elsewhere / "README").write_text("not part of it")
    copy = read_bundle(elsewhere)
    assert (copy.files, copy.digest) == (here.files, here.digest)
    (elsewhere / "eval_data" / "who.jsonl").write_text(lines([*WHO, WHO[0]]))
    assert read_bundle(elsewhere).digest != Bundle(here.folder, here.tasks).digest


def changed_row(rows: list[dict[str, Any]], **values: Any) -> str:
    """The rows, the second of them changed; None takes a column away."""
    row = {name: value for name, value in (rows[1] | values).items() if value is not None}
    return lines([rows[0], row, *rows[2:]])


QUIZ_FILE, WHO_FILE, NEXT_FILE = "eval_data/a/quiz.jsonl", "eval_data/who.jsonl", "eval_data/next.jsonl"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("core.yaml", None, r"there is no .*core\.yaml: name the folder"),
        ("core.yaml", "icl_tasks: [", r"core\.yaml is not readable YAML: .*line 1"),
        ("core.yaml", b"\xff\xfe", r"core\.yaml is not readable YAML"),
        ("core.yaml", "tasks: []", "has no list icl_tasks"),
        ("core.yaml", "icl_tasks: []", "has no list icl_tasks"),
        ("core.yaml", TASKS.replace("label: who, ", ""), "task 2 has no label"),
        ("core.yaml", TASKS.replace("schema", "essay"), r"task 2 \(who\): its type 'essay' is none of multiple_ch"),
        ("core.yaml", TASKS.replace("[0]", "[0, 5]"), r"\(who\): num_fewshot is \[0, 5\]"),
        ("core.yaml", TASKS.replace("[0]", "[-1]"), r"\(who\): num_fewshot is \[-1\]"),
        ("core.yaml", TASKS.replace("[0]", "true"), r"\(who\): num_fewshot is True"),
        ("core.yaml", TASKS.replace("who.jsonl", "../who.jsonl"), r"\(who\): dataset_uri is '../who.jsonl'"),
        ("core.yaml", TASKS.replace("who.jsonl", "/who.jsonl"), r"\(who\): dataset_uri is '/who.jsonl'"),
        ("core.yaml", TASKS.replace('""', "7"), r"\(who\): continuation_delimiter is 7"),
        ("core.yaml", TASKS.replace("label: who", "label: quiz"), "two tasks are called 'quiz'"),
        ("eval_meta_data.csv", None, r"there is no .*eval_meta_data\.csv"),
        ("eval_meta_data.csv", "Eval Task,Chance\n", "has no column 'Random baseline'"),
        ("eval_meta_data.csv", BASELINES.replace("50", "half"), r"csv line 3: the random baseline is 'half'"),
        ("eval_meta_data.csv", BASELINES.replace("50", "100"), r"csv line 3: a random baseline of 100 per cent"),
        ("eval_meta_data.csv", BASELINES.replace("50", "nan"), r"csv line 3: a random baseline of nan per cent"),
        ("eval_meta_data.csv", BASELINES.replace("who,x,50\n", ""), r"\(who\): eval_meta_data.csv has no line for it"),
        (WHO_FILE, None, r"there is no .*who\.jsonl"),
        (WHO_FILE, "\n\n", r"who\.jsonl is empty"),
        (WHO_FILE, lines(WHO)[:-9], r"who\.jsonl line 3 is not JSON .*cut off"),
        (WHO_FILE, lines(WHO[:1]).encode() + b'{"\xff": 1}\n', r"who\.jsonl line 2 is not UTF-8"),
        (WHO_FILE, "[]\n", r"who\.jsonl line 1 is no JSON object but list"),
        (WHO_FILE, changed_row(WHO, gold=2), r"who\.jsonl line 2: gold is 2 and not the number of one of 2 options"),
        (WHO_FILE, changed_row(WHO, gold=-1), r"line 2: gold is -1"),
        (WHO_FILE, changed_row(WHO, gold=True), r"line 2: gold is True"),
        (WHO_FILE, changed_row(WHO, continuation=" "), r"line 2: its continuation is empty"),
        (WHO_FILE, changed_row(WHO, context_options=["A"]), r"line 2 has no list of two or more texts in 'context_opt"),
        (QUIZ_FILE, changed_row(QUIZ, choices=["a", ""], gold=0), r"quiz\.jsonl line 2: one of its choices is empty"),
        (QUIZ_FILE, changed_row(QUIZ, choices=["a", 7], gold=0), r"line 2 has no list of two or more texts in 'choi"),
        (QUIZ_FILE, changed_row(QUIZ, query=None), r"line 2 has no text in 'query': it has choices, gold"),
        (QUIZ_FILE, lines(QUIZ[:1]), r"quiz\.jsonl: 1 rows of quiz are too few"),
        (NEXT_FILE, changed_row(NEXT, context=None), r"next\.jsonl line 2 has no text in 'context'"),
        (NEXT_FILE, changed_row(NEXT, continuation=""), r"next\.jsonl line 2: its continuation is empty"),
    ],
)  # fmt: skip
def test_a_fault_names_its_file_its_line_and_the_cure(
    bundle: Callable[..., Path], name: str, content: str | bytes | None, said: str
) -> None:
    with pytest.raises(BenchmarkError, match=said) as raised:
        read_bundle(bundle({name: content}))
    assert "\n" not in str(raised.value)


def test_a_compressed_file_that_is_cut_off_says_so(tmp_path: Path) -> None:
    whole = gzip.compress(lines(NEXT).encode())
    path = tmp_path / "next.jsonl.gz"
    path.write_bytes(whole)
    assert [row for _, row in read_rows(path)] == NEXT
    path.write_bytes(whole[:-12])
    with pytest.raises(BenchmarkError, match=r"next\.jsonl\.gz cannot be read"):
        list(read_rows(path))
    path.write_bytes(b"no gzip at all")
    with pytest.raises(BenchmarkError, match=r"next\.jsonl\.gz cannot be read"):
        list(read_rows(path))
