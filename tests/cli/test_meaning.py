"""What the kinds of the pipeline's artifacts mean to an export."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from nanocode.cli.meaning import licences, limitations, rows


def part(kind: str, metrics: dict[str, object]) -> SimpleNamespace:
    return SimpleNamespace(record=SimpleNamespace(kind=kind), metrics=metrics)


@pytest.mark.parametrize(
    ("kind", "metrics", "count"),
    [
        ("restyled", {"conversations": {"soul": 5}, "licences": {"ODC-By-1.0": 5}}, 5),
        ("restyled", {"pairs": 3}, 3),
        ("conversations", {"conversations": {"soul": 4, "stock": 6}}, 10),
        ("pairs", {"pairs": 7}, 7),
        ("instructions", {"kept": 5}, 5),
        ("checkpoint", {"kept": 5}, None),
    ],
)
def test_rows_are_what_an_artifact_holds(kind, metrics, count):
    assert rows(part(kind, metrics)) == count


@pytest.mark.parametrize("kind", ["shards", "instructions", "restyled", "pairs"])
def test_licences_go_with_every_kind_that_holds_the_words_of_others(kind):
    assert licences(part(kind, {"licences": {"MIT": 2, "Apache-2.0": 1}})) == ["Apache-2.0", "MIT"]


def test_what_was_generated_here_has_no_licence_of_others():
    assert licences(part("rollouts", {"licences": {"MIT": 2}})) == []


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "Success was measured on 256 procedural tasks, and on nothing else."),
        ({"core": {}}, "Success was measured on 256 procedural tasks, and on CORE."),
        ({"human_eval": {}, "core": {}}, "Success was measured on 256 procedural tasks, and on CORE and HumanEval."),
    ],
)
def test_a_model_that_was_asked_more_than_its_own_tasks_is_not_said_to_be_asked_nothing_else(asked, said):
    config = {"evaluation": {"tasks": 256}} | ({"benchmarks": asked} if asked else {})
    record = SimpleNamespace(kind="evaluation", name="nano/evaluation-dpo", step="evaluate", config=config, inputs={})
    only = SimpleNamespace(record=record, metrics={}, digest="d")
    assert limitations(SimpleNamespace(parts={"d": only}, top=only)) == [said]
