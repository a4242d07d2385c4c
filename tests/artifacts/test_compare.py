"""Comparing two models: each cause is told where it lies, and what only follows from it says so."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from artifacts.build import Build, Built, Stage
from artifacts.compare import RecordDifference, compare
from artifacts.records import ArtifactError


def evaluate(workshop, model: Built, tokens: Built) -> Built:
    """A stage above the model, which uses the data, too."""

    def produce(making: Build) -> None:
        (making.output / "report").write_text((making.inputs["model"] / "weights.bin").read_text())

    inputs = {"model": model.record_digest, "tokens": tokens.record_digest}
    return workshop.build(Stage("evaluate", "report", "nano/report", "steps.train", {}, inputs), produce)


def tree(workshop, rate: float = 0.5, **data) -> str:
    tokens = workshop.data(**data)
    return evaluate(workshop, workshop.train(tokens, rate), tokens).record_digest


def told(workshop, old: str, new: str) -> dict[str, RecordDifference]:
    return {each.path: each for each in compare(workshop.repository, old, new)}


def test_a_model_does_not_differ_from_itself(workshop):
    same = tree(workshop)
    assert compare(workshop.repository, same, same) == []


def test_a_config_key_is_told_where_it_was_changed_and_what_is_above_follows(workshop):
    found = told(workshop, tree(workshop), tree(workshop, rate=0.25))
    assert list(found) == ["", "model"]
    assert [(each.path, each.old, each.new) for each in found["model"].config] == [("rate", 0.5, 0.25)]
    assert (found["model"].follows, found[""].follows, found[""].changed) == (False, True, ("model",))
    assert [each.path for each in found[""].files] == ["report"]
    assert not found[""].same_question


def test_a_change_below_is_walked_to_once_though_two_roles_lead_there(workshop):
    found = told(workshop, tree(workshop), tree(workshop, config={"seed": 2}, text="other text"))
    data = [path for path, each in found.items() if each.step == "data"]
    assert data == ["model > tokens"]
    assert [each.path for each in found["model > tokens"].config] == ["seed"]
    assert [each.path for each in found["model > tokens"].files] == ["train/0.txt"]
    assert found[""].changed == ("model", "tokens")


def test_early_cut_off_shows_another_record_with_the_same_content(workshop):
    found = told(workshop, tree(workshop), tree(workshop, config={"seed": 2}))
    assert found == {}, "the stages above were found by content, so the model is the very same"
    first, second = workshop.data().record_digest, workshop.data({"seed": 2}).record_digest
    (data,) = compare(workshop.repository, first, second)
    assert (data.same_content, data.files) == (True, ())
    assert [each.path for each in data.config] == ["seed"]


def test_the_modules_whose_code_changed_are_named(workshop):
    old = workshop.train(workshop.data()).record_digest
    workshop.write("nanocode/optimizer.py", "RATE = 0.2\n")
    new = workshop.train(workshop.data({"seed": 2}, text="x")).record_digest
    found = told(workshop, old, new)
    assert [each.path for each in found[""].code] == ["nanocode.optimizer"]
    assert found["tokens"].code == ()


def test_other_bytes_for_the_same_question_point_at_the_environment(workshop):
    tokens = workshop.data()
    record = workshop.repository.read_record(tokens.record_digest)
    (made,) = workshop.repository.provenances(tokens.record_digest)
    other = replace(record, files=record.files[:1])
    workshop.repository.store.put_bytes(f"records/{other.digest}.json", other.to_json())
    elsewhere = replace(made, record=other.digest, environment={**made.environment, "python": "3.99"})
    workshop.repository.add_provenance(elsewhere)
    (found,) = compare(workshop.repository, record.digest, other.digest)
    assert (found.same_question, found.same_content, found.follows) == (True, False, True)
    assert [each.path for each in found.environment] == ["python"]


def test_an_input_that_one_side_lacks_is_told(workshop):
    data = workshop.data()
    model = workshop.train(data)
    (found,) = compare(workshop.repository, model.record_digest, data.record_digest)
    assert [each.path for each in found.inputs] == ["tokens"]
    assert [each.path for each in found.made_as] == ["kind", "name", "step"]


def test_a_comparison_is_plain_data(workshop):
    document = [each.to_json() for each in compare(workshop.repository, tree(workshop), tree(workshop, rate=0.25))]
    assert json.loads(json.dumps(document)) == document
    assert document[1]["config"] == [{"path": "rate", "old": 0.5, "new": 0.25}]


def test_a_record_that_is_missing_is_refused(workshop):
    with pytest.raises(ArtifactError, match="does not exist"):
        compare(workshop.repository, workshop.data().record_digest, "0" * 64)
