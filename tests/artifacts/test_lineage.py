"""Lineage: the tree reaches the sources, and every kind of lie is named with the object that tells it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import pytest

from artifacts.build import Build, Stage
from artifacts.canonical import canonical_json, digest
from artifacts.lineage import tree, verify
from artifacts.reach import reach
from artifacts.records import ArtifactError
from artifacts.releases import list_releases, publish
from artifacts.repository import blob_name, key_name, record_name

DATE = "2026-01-02T03:04:05Z"


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

    built = workshop.build(Stage("data", "t", "nano/data", "steps.data", {}), produce)
    left, right = (blob_name(entry.sha256) for entry in workshop.repository.read_record(built.record_digest).files)
    workshop.overwrite(left, b"RIGHT")
    workshop.overwrite(right, b"LEFT!")
    found = verify(workshop.repository, built.record_digest)
    assert [(fault.kind, fault.object) for fault in found] == [("swapped-blob", left), ("swapped-blob", right)]
    assert "which is nano/data: right" in found[0].message
    assert "which is nano/data: left" in found[1].message


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


def released(model, name: str = "nano", metrics: Mapping[str, Any] = MappingProxyType({})) -> int:
    return publish(model.repository, name, model.model.record_digest, metrics, DATE)


def edit(model, name: str, **changes) -> None:
    document = json.loads(model.repository.store.read(name))
    model.overwrite(name, canonical_json(document | changes))


def test_what_was_released_has_no_faults_however_often_it_is_made_again(model):
    released(model)
    last = model.repository.provenances(model.tokens.record_digest)[-1]
    model.repository.add_provenance(last)
    assert faults(model) == []


def test_an_edited_metric_of_a_making_is_named_once_the_model_was_released(model):
    released(model)
    name = f"provenance/{model.tokens.record_digest}/1.json"
    edit(model, name, metrics={"documents": 1_000_000})
    (fault,) = verify(model.repository, model.model.record_digest)
    assert (fault.kind, fault.object) == ("altered-provenance", name)
    assert "since release nano@1 was made" in fault.message


def test_provenance_that_is_gone_is_named_once_the_model_was_released(model):
    released(model)
    name = f"provenance/{model.tokens.record_digest}/1.json"
    model.object(name).unlink()
    assert faults(model) == [("missing-provenance", name)]


def test_provenance_that_cannot_be_read_is_named(model):
    name = f"provenance/{model.tokens.record_digest}/1.json"
    model.overwrite(name, b"{")
    assert faults(model) == [("altered-provenance", name)]


@pytest.mark.parametrize("change", [{"metrics": {"loss": 0.0}}, {"created": "2027-01-01T00:00:00Z"}, {"version": 7}])
def test_an_edited_release_is_named(model, change):
    released(model)
    edit(model, "releases/nano/1.json", **change)
    assert faults(model) == [("altered-release", "releases/nano/1.json")]


def test_a_release_copied_to_another_number_is_named(model):
    released(model)
    model.repository.store.put_bytes("releases/nano/5.json", model.repository.store.read("releases/nano/1.json"))
    assert ("altered-release", "releases/nano/5.json") in faults(model)


@pytest.mark.parametrize("reseals", [False, True])
def test_a_version_pointing_elsewhere_is_named_with_what_was_released(model, reseals):
    released(model)
    other = model.train(model.tokens, rate=0.25).record_digest
    name = "releases/nano/1.json"
    edit(model, name, record=other)
    if reseals:
        rest = {key: value for key, value in json.loads(model.repository.store.read(name)).items() if key != "seal"}
        edit(model, name, seal=digest(rest))
    (fault,) = verify(model.repository, other)
    assert (fault.kind, fault.object) == ("repointed-release", name)
    assert model.repository.read_record(model.model.record_digest).content_digest in fault.message


def test_a_version_rewritten_consistently_is_named_by_the_one_after_it(model):
    released(model)
    other = model.train(model.tokens, rate=0.25)
    publish(model.repository, "nano", other.record_digest, {}, DATE)
    name = "releases/nano/1.json"
    document = json.loads(model.repository.store.read(name)) | {"metrics": {"loss": 0.0}}
    document["seal"] = digest({key: value for key, value in document.items() if key != "seal"})
    model.overwrite(name, canonical_json(document))
    assert faults(model) == [("rewritten-release", name)]
    assert [fault.object for fault in verify(model.repository, other.record_digest)] == [name]


def test_a_version_that_was_taken_out_is_named(model):
    released(model)
    for rate in (0.25, 0.125):
        publish(model.repository, "nano", model.train(model.tokens, rate=rate).record_digest, {}, DATE)
    assert faults(model) == []
    model.object("releases/nano/2.json").unlink()
    assert faults(model) == [("missing-release", "releases/nano/2.json")]


def test_a_release_from_before_there_were_seals_still_reads_and_verifies(model):
    fields = {"record": model.model.record_digest, "metrics": {}, "created": DATE}
    model.repository.store.put_bytes("releases/nano/1.json", canonical_json(fields))
    released(model, metrics={"again": 1})
    assert [release.version for release in list_releases(model.repository)] == [1]
    other = model.train(model.tokens, rate=0.25)
    assert publish(model.repository, "nano", other.record_digest, {}, DATE) == 2
    assert faults(model) == []


def test_nothing_is_released_whose_lineage_has_a_hole(model):
    model.object(record_name(model.tokens.record_digest)).unlink()
    with pytest.raises(ArtifactError, match="input 'tokens' of train"):
        released(model)


def test_a_release_that_points_to_nothing_is_named(model):
    released(model)
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


def test_a_signature_of_something_else_is_among_the_faults(model):
    released(model)
    model.repository.store.put_bytes("releases/nano/1.sig.json", b"{}")
    assert faults(model) == [("altered-signature", "releases/nano/1.sig.json")]


def test_releases_that_race_for_a_number_all_land_in_a_history_that_verifies(model):
    records = [model.train(model.tokens, rate=0.1 + index).record_digest for index in range(6)]
    with ThreadPoolExecutor(len(records)) as pool:
        versions = list(pool.map(lambda record: publish(model.repository, "nano", record, {}, DATE), records))
    assert sorted(versions) == list(range(1, len(records) + 1))
    assert verify(model.repository, records[0]) == []
