"""Releases: numbered by the store, append-only, found by name, version or digest."""

from __future__ import annotations

import threading

import pytest

from artifacts.records import ArtifactError
from artifacts.releases import UnknownModel, list_releases, publish, resolve, resolve_record

DATE = "2026-01-02T03:04:05Z"


@pytest.fixture
def digests(workshop) -> list[str]:
    return [workshop.data({"seed": seed}).record_digest for seed in range(12)]


def test_versions_count_up_and_the_same_record_keeps_its_number(workshop, digests):
    repository = workshop.repository
    assert publish(repository, "nano", digests[0], {"bpb": 1.5}, DATE) == 1
    assert publish(repository, "nano", digests[0], {"bpb": 1.5}, DATE) == 1
    assert publish(repository, "nano", digests[1], {"bpb": 1.4}, DATE) == 2
    assert publish(repository, "nano", digests[0], {"bpb": 1.5}, DATE) == 3
    assert publish(repository, "d12", digests[0], {}, DATE) == 1
    assert [(each.name, each.version, each.record) for each in list_releases(repository)] == [
        ("d12", 1, digests[0]),
        ("nano", 1, digests[0]),
        ("nano", 2, digests[1]),
        ("nano", 3, digests[0]),
    ]


def test_concurrent_releases_get_a_number_each_without_gaps(workshop, digests):
    versions: list[int] = []
    threads = [
        threading.Thread(target=lambda each=each: versions.append(publish(workshop.repository, "nano", each, {}, DATE)))
        for each in digests
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(versions) == list(range(1, len(digests) + 1))


def test_a_model_is_found_by_name_version_and_digest_prefix(workshop, digests):
    for each in digests:
        publish(workshop.repository, "nano", each, {}, DATE)
    assert resolve(workshop.repository, "nano").version == len(digests)
    assert resolve(workshop.repository, "nano@3").record == digests[2]
    assert resolve(workshop.repository, digests[4]).version == 5
    assert resolve(workshop.repository, digests[4][:16]).version == 5


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nanno", "did you mean 'nano'"),
        ("completely-other", "there are nano"),
        ("nano@7", "has no version '7', only 1"),
        ("nano@01", "has no version '01', only 1"),
        ("nano@", "has no version ''"),
        ("0000000000", "no model '0000000000'"),
    ],
)
def test_an_unknown_model_gets_a_hint(workshop, digests, model, message):
    publish(workshop.repository, "nano", digests[0], {}, DATE)
    with pytest.raises(UnknownModel, match=message):
        resolve(workshop.repository, model)


def test_an_empty_store_says_so(workshop):
    with pytest.raises(UnknownModel, match="nothing has been released"):
        resolve(workshop.repository, "nano")


def test_an_ambiguous_prefix_is_refused_with_its_candidates(workshop):
    store = workshop.repository.store
    for last in "12":
        record = "abcd" + last * 60
        store.put_bytes(f"releases/m{last}/1.json", f'{{"record":"{record}","metrics":{{}},"created":"x"}}'.encode())
    with pytest.raises(UnknownModel, match=r"fits m1@1 \(abcd1.*, m2@1 \(abcd2"):
        resolve(workshop.repository, "abcd")


def test_any_record_is_found_by_its_prefix_for_lineage(workshop, digests):
    assert resolve_record(workshop.repository, digests[3][:16]) == digests[3]
    publish(workshop.repository, "nano", digests[5], {}, DATE)
    assert resolve_record(workshop.repository, "nano") == digests[5]
    with pytest.raises(UnknownModel, match="did you mean"):
        resolve_record(workshop.repository, "nan")


def test_a_release_needs_a_record_and_a_plain_name(workshop, digests):
    with pytest.raises(ArtifactError, match="does not exist"):
        publish(workshop.repository, "nano", "0" * 64, {}, DATE)
    for name in ("Nano", "a/b", "", "-a", "a@1"):
        with pytest.raises(ArtifactError, match="release name"):
            publish(workshop.repository, name, digests[0], {}, DATE)
    assert list_releases(workshop.repository) == []
