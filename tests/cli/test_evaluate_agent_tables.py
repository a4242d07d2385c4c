"""`nanocode eval`, deeper: the funnel, several samples, micro-SWE and two models paired."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console
from scripted_server import MODEL, serving
from typer.testing import CliRunner

from nanocode.cli import app
from nanocode.cli.context import Settings
from nanocode.cli.evaluation_agent_tables import agent_tables, paired_lines, pairs
from nanocode.cli.evaluation_table import Result
from nanocode.conversation import Message, ToolCall
from nanocode.evaluation.agreement import compare_figures
from nanocode.evaluation.intervals import Rate
from nanocode.evaluation.micro_swe.generation import micro_swe_tasks

BUGS = {task.prompt: task for task in micro_swe_tasks(3, 0)}


def fixer(conversation: list[Message]) -> Message:
    """Fixes the first bug, edits the test of the second, and says that all is well with the third."""
    task = BUGS[conversation[0].content]
    (path,) = [path for path in task.files if task.files[path] != task.expect.files[path]]
    place = list(BUGS).index(task.prompt)
    if len(conversation) > 1 or place == 2:
        return Message("assistant", "all is well")
    before, after = (files[path].splitlines() for files in (task.files, task.expect.files))
    old, new = next((old, new) for old, new in zip(before, after, strict=True) if old != new)
    if place == 1:
        path, old, new = f"test_{path}", "import unittest\n", "\n"
    text = {"old_string": old, "new_string": new}
    return Message("assistant", "", ToolCall("Edit", {"file_path": path, **text}))


def at(address: str, *arguments: str) -> Any:
    where = ("--endpoint", f"{address}/v1", "--endpoint-model", MODEL, "--no-system", "--json")
    return CliRunner().invoke(app, ["eval", *where, *arguments], obj=Settings(), env={"COLUMNS": "300"})


def test_micro_swe_at_an_endpoint_says_what_was_fixed_and_by_which_edits(tokenizer) -> None:
    with serving(tokenizer, fixer, context_tokens=20_000) as address:
        result = at(address, "--suite", "micro-swe", "--tasks", "3", "--decoding", "sampled", "--samples", "2")
    assert result.exit_code == 0, result.output
    (theirs,) = json.loads(result.stdout)["results"]
    found = theirs["micro_swe"]["sampled"]
    figures = [
        (found[name]["hits"], found[name]["n"]) for name in ("success", "edited_the_right_file", "edited_a_test")
    ]
    assert figures == [(1, 3)] * 3
    assert list(found["solved"].values()) == [True, False, False]
    assert {name: rate["hits"] for name, rate in found["by_bug"].items()}[next(iter(BUGS.values())).variant] == 1
    assert found["samples"]["pass_hat_k"]["2"]["rate"] == pytest.approx(1 / 3)
    assert found["funnel"]["never_called"]["hits"] == 1 and "right_tool" not in found["funnel"]["tasks"]
    assert "6 of 6 tasks" in result.stderr


def test_several_greedy_samples_are_refused(tokenizer) -> None:
    result = at("http://127.0.0.1:9", "--samples", "4")
    assert result.exit_code == 2 and "greedy samples are all the same" in result.output


def rate(hits: int, n: int = 4) -> dict[str, Any]:
    return Rate(hits, n).to_json()


def result(name: str, *solved: str) -> Result:
    """A contestant's figures; of tasks a to d those named in `solved` are."""
    tasks = {task: task in solved for task in "abcd"}
    funnel = {
        "tasks": {"attempted": rate(4), "solved": rate(len(solved))},
        "calls": {"parsed": rate(3, 8)},
        "calls_a_task": {"mean": 2.0, "n": 4, "low": 1.5, "high": 2.5},
        "turns_a_task": {"mean": 3.0, "n": 4, "low": None, "high": None},
        "overruns": rate(1),
        "cut_replies": None,
        "repeated_calls": rate(0, 8),
        "called_needlessly": rate(0, 0),
        "never_called": rate(0),
    }
    samples = {"n": 2, "pass_at_k": {"1": rate(1), "2": rate(2)}, "pass_hat_k": {"1": rate(1), "2": rate(0)}}
    micro = {"success": rate(1), "edited_a_test": rate(2), "by_bug": {"off_by_one": rate(1, 2)}, "solved": tasks}
    sampled = {"funnel": funnel, "solved": tasks, "samples": samples}
    return Result(name, {"sampled": sampled, "micro_swe": {"sampled": micro}})


def test_tables_stand_beside_each_other_and_leave_out_what_is_not_known() -> None:
    console = Console(width=140, record=True, file=io.StringIO())
    for table in agent_tables([result("nano@1", "a"), Result("other (recorded)", {"sampled": {}})]):
        console.print(table)
    rows = [line.split() for line in console.export_text().splitlines()]
    assert ["tasks:", "solved", "0.250", "(0.046..0.699,", "n=4)"] in rows
    assert ["calls:", "parsed", "0.375", "(0.137..0.694,", "n=8)"] in rows
    assert ["cut", "replies"] in rows
    assert ["calls", "a", "task", "2.00", "(1.50..2.50,", "n=4)"] in rows
    assert ["turns", "a", "task", "3.00", "(n=4)"] in rows
    assert ["pass@2", "0.500", "(0.150..0.850,", "n=4)"] in rows
    assert ["bugs", "fixed", "0.250", "(0.046..0.699,", "n=4)"] in rows
    assert ["off", "by", "one", "0.500", "(0.095..0.905,", "n=2)"] in rows


def test_figures_without_a_funnel_make_no_table() -> None:
    assert list(agent_tables([Result("old", {"greedy": {"success": rate(1)}})])) == []


def test_two_models_are_paired_on_the_same_tasks() -> None:
    found = pairs(result("one", "a", "b"), result("two", "b", "c", "d"))
    assert set(found) == {"sampled", "micro_swe.sampled"}
    assert (found["sampled"].wins, found["sampled"].losses) == (("c", "d"), ("a",))
    lines = list(paired_lines("one", "two", found))
    assert lines[0].startswith("two against one, task by task, sampled: +25.0 points (")
    assert lines[1:3] == ["  won: c, d", "  lost: a"]
    assert lines[3].startswith("two against one, task by task, micro-SWE, sampled: ")


def test_what_has_no_tasks_on_record_is_not_paired() -> None:
    assert pairs(result("one", "a"), Result("two (recorded)", {"sampled": {"success": rate(1)}})) == {}


def test_stages_of_the_funnel_are_compared_with_those_on_record() -> None:
    def figures(hits: int) -> dict[str, Any]:
        return {"greedy": {"funnel": {"tasks": {"right_arguments": rate(hits, 200)}}}}

    (same,) = compare_figures(figures(150), figures(150))
    (differs,) = compare_figures(figures(150), figures(90))
    assert (same.figure, same.verdict, differs.verdict) == ("greedy.funnel.right_arguments", "same", "differs")
