"""Records: their digest is their bytes, their content digest their files, and reading is strict."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.records import ArtifactError, FileEntry, Fingerprint, Provenance, Record

HASH = hashlib.sha256(b"").hexdigest()
RECORD = Record(
    kind="model",
    step="train",
    name="nano/train",
    files=(FileEntry("a/b.txt", 3, HASH),),
    inputs={"tokens": HASH},
    config={"rate": 0.5, "layers": (1, 2)},
    code=Fingerprint(HASH, {"steps.train": HASH}),
)

NAMES = st.from_regex(r"[a-z]{1,8}", fullmatch=True)


@given(
    NAMES,
    st.lists(
        st.builds(FileEntry, NAMES, st.integers(0, 2**50), st.binary().map(lambda b: hashlib.sha256(b).hexdigest()))
    ),
    st.dictionaries(NAMES, st.integers() | st.text(st.characters(exclude_categories=["Cs"]))),
)
def test_a_record_reads_back_as_itself(step, files, config):
    record = replace(RECORD, step=step, files=tuple(files), config=config)
    again = Record.from_json(record.to_json())
    assert again == record
    assert again.digest == record.digest == hashlib.sha256(record.to_json()).hexdigest()


def test_the_document_has_the_fields_of_the_contract():
    document = json.loads(RECORD.to_json())
    assert set(document) == {"schema", "kind", "step", "name", "files", "inputs", "config", "code"}
    assert document["files"] == [{"path": "a/b.txt", "bytes": 3, "sha256": HASH}]
    assert document["code"] == {"fingerprint": HASH, "modules": {"steps.train": HASH}}


def test_the_content_digest_depends_on_the_files_alone():
    other = replace(RECORD, step="x", name="y", config={}, inputs={}, code=Fingerprint("", {}))
    assert other.content_digest == RECORD.content_digest
    assert other.digest != RECORD.digest
    moved = replace(RECORD, files=(FileEntry("a/c.txt", 3, HASH),))
    assert moved.content_digest != RECORD.content_digest


def test_provenance_reads_back_as_itself():
    provenance = Provenance(HASH, {"commit": None}, {"python": "3"}, {"loss": 1.5}, {"usd": 0}, {"run_id": "1"})
    assert Provenance.from_json(provenance.to_json()) == provenance


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema 2, this version reads schema 1"),
        ({"extra": 1}, "has unknown extra"),
        ({"step": None}, "step must be str"),
        ({"files": [{"path": "a"}]}, "misses bytes, sha256"),
        ({"files": [{"path": "../a", "bytes": 1, "sha256": HASH}]}, "must stay inside"),
        ({"files": [{"path": "/a", "bytes": 1, "sha256": HASH}]}, "must stay inside"),
        ({"files": [{"path": "a", "bytes": True, "sha256": HASH}]}, "bytes must be int"),
        ({"files": [{"path": "a", "bytes": 1, "sha256": "ab"}]}, "no valid size and sha256"),
        ({"code": []}, "code must be dict"),
    ],
)
def test_anything_unknown_missing_or_unsafe_is_refused(change, message):
    document = json.loads(RECORD.to_json()) | change
    with pytest.raises(ArtifactError, match=message):
        Record.from_json(json.dumps(document).encode(), "records/x.json")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"null"])
def test_what_is_no_json_object_is_refused_by_name(data):
    with pytest.raises(ArtifactError, match=r"records/x\.json"):
        Record.from_json(data, "records/x.json")
