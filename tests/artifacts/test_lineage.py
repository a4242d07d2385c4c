"""Lineage: the tree reaches the sources, and every kind of lie is named with the object that tells it."""

from __future__ import annotations

import json

import pytest

from artifacts.build import Build, Stage
from artifacts.lineage import reach, tree, verify
from artifacts.releases import publish
from artifacts.repository import blob_name, key_name, record_name


@pytest.fixture
def model(workshop):
    """A model made of tokens; `tokens` and `model` are what was built."""
    workshop.tokens = workshop.data()
    workshop.model = workshop.train(workshop.tokens)
    return workshop


def faults(workshop) -> list[tuple[str, str]]:
    return [(fault.kind, fault.object) for fault in verify(workshop.repository, workshop.model.record_digest)]


def blobs(workshop) -> list[str]:
    return [blob_name(entry.sha256) for entry in workshop.repository.read_record(workshop.tokens.record_digest).files]


def test_what_is_true_has_no_faults_and_all_bytes_are_read(model):
    heard = []
    assert verify(model.repository, model.model.record_digest, lambda done, total: heard.append((done, total))) == []
    size = sum(entry.bytes for entry in reach(model.repository, model.model.record_digest).files)
    assert heard[-1] == (size, size)


def test_the_tree_goes_down_to_the_source_and_says_how_each_was_made(model):
    root = tree(model.repository, model.model.record_digest)
    assert (root.role, root.step, root.config) == (None, "train", {"rate": 0.5})
    (tokens,) = root.inputs
    assert (tokens.role, tokens.step, tokens.record) == ("tokens", "data", model.tokens.record_digest)
    assert (tokens.files, tokens.bytes, tokens.inputs) == (2, len("some text") + len("{}"), ())
    assert tokens.made.times == 1
    assert tokens.made.environment["python"]


def test_a_record_used_twice_is_shown_once_in_full(model):
    inputs = {"model": model.model.record_digest, "tokens": model.tokens.record_digest}

    def produce(making: Build) -> None:
        (making.output / "report").write_text("ok")

    report = model.build(Stage("evaluate", "report", "nano/report", "steps.train", {}, inputs), produce)
    first, second = tree(model.repository, report.record_digest).inputs
    assert first.inputs[0].record == second.record
    assert (first.inputs[0].repeated, second.repeated) == (False, True)


def test_a_missing_blob_is_named(model):
    model.object(blobs(model)[0]).unlink()
    assert faults(model) == [("missing-blob", blobs(model)[0])]


def test_a_truncated_blob_is_named(model):
    model.overwrite(blobs(model)[1], b"some te")
    assert faults(model) == [("truncated-blob", blobs(model)[1])]


@pytest.mark.parametrize("data", [b"Some text", b"some text and more"])
def test_an_altered_blob_is_named(model, data):
    model.overwrite(blobs(model)[1], data)
    assert faults(model) == [("altered-blob", blobs(model)[1])]


def test_swapped_blobs_are_both_named_with_what_they_hold_instead(workshop):
    def produce(making: Build) -> None:
        (making.output / "left").write_text("LEFT!")
        (making.output / "right").write_text("RIGHT")

    built = workshop.build(Stage("data", "t", "n", "steps.data", {}), produce)
    left, right = (blob_name(entry.sha256) for entry in workshop.repository.read_record(built.record_digest).files)
    workshop.overwrite(left, b"RIGHT")
    workshop.overwrite(right, b"LEFT!")
    found = verify(workshop.repository, built.record_digest)
    assert [(fault.kind, fault.object) for fault in found] == [("altered-blob", left), ("altered-blob", right)]
    assert "which is data: right" in found[0].message
    assert "which is data: left" in found[1].message


def test_an_altered_record_is_named(model):
    name = record_name(model.model.record_digest)
    model.overwrite(name, model.repository.store.read(name).replace(b'"rate":0.5', b'"rate":0.1'))
    assert ("altered-record", name) in faults(model)


def test_an_input_that_does_not_exist_is_named_with_who_asks_for_it(model):
    name = record_name(model.tokens.record_digest)
    model.object(name).unlink()
    (fault,) = verify(model.repository, model.model.record_digest)
    assert (fault.kind, fault.object) == ("missing-record", name)
    assert "input 'tokens' of train" in fault.message


@pytest.mark.parametrize("target", ["another record", "nothing"])
def test_a_key_that_points_elsewhere_is_named(model, target):
    name = key_name(model.model.key)
    document = json.loads(model.repository.store.read(name))
    document["record"] = model.tokens.record_digest if target == "another record" else "0" * 64
    model.overwrite(name, json.dumps(document).encode())
    assert faults(model) == [("altered-key", name)]


def test_a_key_with_an_altered_payload_is_named(model):
    name = key_name(model.tokens.key)
    model.overwrite(name, model.repository.store.read(name).replace(b'"seed":1', b'"seed":2'))
    assert faults(model) == [("altered-key", name)]


def test_a_key_that_moved_to_another_honest_making_is_no_lie(model):
    model.object(blobs(model)[1]).unlink()
    other = model.data(text="made elsewhere")
    assert other.record_digest != model.tokens.record_digest
    assert faults(model) == [("missing-blob", blobs(model)[1])]


def test_provenance_of_another_record_is_named(model):
    own = f"provenance/{model.model.record_digest}/1.json"
    model.overwrite(own, model.repository.store.read(f"provenance/{model.tokens.record_digest}/1.json"))
    assert faults(model) == [("altered-provenance", own)]


def test_a_release_that_points_to_nothing_is_named(model):
    publish(model.repository, "nano", model.model.record_digest, {}, "2026-01-02T03:04:05Z")
    model.object(record_name(model.model.record_digest)).unlink()
    assert faults(model) == [
        ("missing-record", record_name(model.model.record_digest)),
        ("broken-release", "releases/nano/1.json"),
    ]


def test_several_lies_are_all_told(model):
    model.object(blobs(model)[0]).unlink()
    model.overwrite(blobs(model)[1], b"x")
    assert {kind for kind, _ in faults(model)} == {"missing-blob", "truncated-blob"}


def test_verify_sees_any_single_flipped_byte_in_what_it_reaches(model):
    names = [name for name in model.repository.store.list("") if name.startswith(("objects/", "records/"))]
    assert len(names) == 5
    for name in names:
        whole = model.repository.store.read(name)
        for position in sorted({0, len(whole) // 2, len(whole) - 1}):
            flipped = bytearray(whole)
            flipped[position] ^= 1
            model.overwrite(name, bytes(flipped))
            assert name in [fault for _, fault in faults(model)]
        model.overwrite(name, whole)
    assert faults(model) == []
