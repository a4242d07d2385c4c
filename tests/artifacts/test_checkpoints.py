"""Checkpoints: the manifest is the commit, the newest whole one counts, pruning never harms the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from artifacts.checkpoints import CheckpointStore
from artifacts.records import ArtifactError
from artifacts.store import open_store


@pytest.fixture
def checkpoints(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(open_store("file:store", tmp_path), "k" * 64)


@pytest.fixture
def folder(tmp_path: Path):
    def make(**files: str) -> Path:
        path = tmp_path / f"state-{len(list(tmp_path.iterdir()))}"
        path.mkdir()
        for name, text in files.items():
            (path / name).write_text(text)
        return path

    return make


def blobs(checkpoints: CheckpointStore) -> list[str]:
    return list(checkpoints.store.list(checkpoints.prefix + "blobs/"))


def test_the_newest_by_number_is_restored_byte_for_byte(checkpoints, folder, tmp_path):
    assert checkpoints.latest() is None
    for step in (9, 10, 100):
        checkpoints.save(step, folder(params=f"p{step}", shared="same"), {"position": step * 2})
    latest = checkpoints.latest()
    assert (latest.step, latest.details) == (100, {"position": 200})
    restored = checkpoints.restore(latest, tmp_path / "restored")
    assert {path.name: path.read_text() for path in restored.iterdir()} == {"params": "p100", "shared": "same"}


def test_older_checkpoints_are_found_one_after_the_other(checkpoints, folder):
    for step in (9, 10, 100):
        checkpoints.save(step, folder(params=f"p{step}"), {})
    assert checkpoints.latest(before=100).step == 10
    assert checkpoints.latest(before=10).step == 9
    assert checkpoints.latest(before=9) is None


def test_a_checkpoint_without_manifest_does_not_exist(checkpoints, folder, monkeypatch):
    def killed(name: str, data: bytes) -> bool:
        raise KeyboardInterrupt

    checkpoints.save(1, folder(params="p1"), {})
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.store, "put_if_absent", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save(2, folder(params="p2"), {})
    assert len(blobs(checkpoints)) == 2
    assert checkpoints.latest().step == 1
    checkpoints.save(2, folder(params="p2"), {})
    assert checkpoints.latest().step == 2


def test_saving_a_step_again_keeps_the_first(checkpoints, folder):
    first = checkpoints.save(5, folder(params="p"), {"written": 1})
    assert checkpoints.save(5, folder(params="p"), {"written": 2}) == first
    assert checkpoints.latest() == first


@pytest.mark.parametrize("harm", ["missing", "truncated"])
def test_a_checkpoint_that_lost_a_blob_is_passed_over_and_can_be_saved_again(checkpoints, folder, harm):
    checkpoints.save(1, folder(params="first"), {})
    broken = checkpoints.save(2, folder(params="second"), {})
    name = f"{checkpoints.prefix}blobs/{broken.files[0].sha256}"
    checkpoints.store.delete(name) if harm == "missing" else checkpoints.store.put_bytes(name, b"sec")
    assert checkpoints.latest().step == 1
    checkpoints.save(2, folder(params="second, once more"), {})
    assert checkpoints.latest().files[0].bytes == len("second, once more")


def test_an_altered_blob_is_refused_when_restored(checkpoints, folder, tmp_path):
    manifest = checkpoints.save(1, folder(params="first"), {})
    checkpoints.store.put_bytes(f"{checkpoints.prefix}blobs/{manifest.files[0].sha256}", b"tsrif")
    with pytest.raises(ArtifactError, match="params was altered"):
        checkpoints.restore(manifest, tmp_path / "restored")


def test_pruning_deletes_old_checkpoints_and_only_blobs_nobody_needs(checkpoints, folder, tmp_path):
    for step in range(1, 6):
        checkpoints.save(step, folder(params=f"p{step}", shared="same"), {})
    assert checkpoints.prune(keep=2) == [1, 2, 3]
    assert len(blobs(checkpoints)) == 3
    for step in (5, 4):
        latest = checkpoints.latest()
        assert latest.step == step
        checkpoints.restore(latest, tmp_path / str(step))
        checkpoints.store.delete(f"{checkpoints.prefix}manifests/{step}.json")
    assert checkpoints.latest() is None


def test_the_best_by_a_figure_is_kept_beside_the_newest(checkpoints, folder):
    measured = {1: 3.0, 2: 1.0, 3: 2.0, 4: 1.0, 5: None, 6: 2.5}
    for step, value in measured.items():
        details = {} if value is None else {"figures": {"bpb": value}}
        checkpoints.save(step, folder(params=f"p{step}"), details)
    assert checkpoints.prune(keep=1, best="bpb") == [1, 2, 3, 5]
    assert [checkpoints.latest().step, checkpoints.latest(before=6).step] == [6, 4]
    assert len(blobs(checkpoints)) == 2
    assert checkpoints.prune(keep=1, best="no such figure") == [4]


def test_keeping_none_is_refused(checkpoints):
    with pytest.raises(ArtifactError, match="keep at least 1"):
        checkpoints.prune(0)


def test_clear_leaves_nothing_of_this_key_and_all_of_others(checkpoints, folder):
    other = CheckpointStore(checkpoints.store, "o" * 64)
    for each in (checkpoints, other):
        each.begin_attempt({})
        each.save(1, folder(params="p"), {})
    checkpoints.clear()
    assert list(checkpoints.store.list(checkpoints.prefix)) == []
    assert other.latest().step == 1


def test_attempts_count_those_before(checkpoints):
    assert [checkpoints.begin_attempt({"run": n}) for n in range(12)] == list(range(12))


def test_an_empty_folder_and_a_negative_step_are_refused(checkpoints, folder):
    with pytest.raises(ArtifactError, match="is empty"):
        checkpoints.save(1, folder(), {})
    with pytest.raises(ArtifactError, match="negative"):
        checkpoints.save(-1, folder(params="p"), {})
    assert checkpoints.latest() is None
