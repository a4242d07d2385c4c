"""Append-only files in segments, and their lines sorted on disk: what is sent and what is held does not grow."""

from __future__ import annotations

import gzip
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.checkpoints import CheckpointStore
from artifacts.store import open_store
from nanocode.constitution.ledger import Ledger
from steps.pipeline.segments import cut, join, write_sorted


@given(pieces=st.lists(st.binary(max_size=40), min_size=1, max_size=8), segment_bytes=st.integers(1, 30))
def test_segments_join_to_the_file_after_every_growth(pieces, segment_bytes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("segments")
    source, segments = folder / "l.jsonl", folder / "segments"
    segments.mkdir()
    source.touch()
    for number, piece in enumerate(pieces):
        with source.open("ab") as file:
            file.write(piece)
        sealed = {path.name: path.stat().st_mtime_ns for path in segments.iterdir() if full(path, segment_bytes)}
        cut(source, segments, segment_bytes)
        assert all((segments / name).stat().st_mtime_ns == written for name, written in sealed.items())
        whole = folder / f"whole-{number}"
        whole.mkdir()
        join(segments, whole)
        expected = source.read_bytes()
        assert [path.read_bytes() for path in whole.iterdir()] == ([expected] if expected else [])


def full(path, segment_bytes):
    return path.stat().st_size == segment_bytes


def test_a_file_that_was_saved_whole_is_taken_as_it_is(tmp_path):
    for folder in ("saved", "whole"):
        (tmp_path / folder).mkdir()
    (tmp_path / "saved" / "sft-0-of-1.jsonl").write_bytes(b"a\n")
    join(tmp_path / "saved", tmp_path / "whole")
    assert (tmp_path / "whole" / "sft-0-of-1.jsonl").read_bytes() == b"a\n"


def test_a_growing_ledger_sends_each_sealed_segment_once(tmp_path):
    source, segments = tmp_path / "l.jsonl", tmp_path / "segments"
    segments.mkdir()
    store = open_store(f"file:{tmp_path / 'store'}", tmp_path)
    sent = []
    put_file = store.put_file

    def counted(name, path, sha256):
        sent.append(path.stat().st_size)
        put_file(name, path, sha256)

    store.put_file = counted
    checkpoints = CheckpointStore(store, "a" * 64)
    for save in range(1, 21):
        with source.open("ab") as file:
            file.write(random.Random(save).randbytes(1_000))
        cut(source, segments, 4_000)
        checkpoints.save(save, segments, {})
        checkpoints.prune(1)
    assert max(sent) <= 4_000
    assert sum(sent) <= 20 * 4_000, "a segment at most for each save, whereas whole files would have been 210,000"
    restored = checkpoints.restore(checkpoints.latest(), tmp_path / "elsewhere")
    (tmp_path / "whole").mkdir()
    join(restored, tmp_path / "whole")
    assert (tmp_path / "whole" / "l.jsonl").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("run_bytes", [1, 100, 10_000_000])
def test_lines_are_sorted_whatever_fits_into_memory(run_bytes, tmp_path):
    lines = [f"{number:05} {'é' * (number % 7)}\n".encode() for number in range(300)]
    random.Random(1).shuffle(lines)
    (tmp_path / "one").write_bytes(b"".join(lines[:100]))
    (tmp_path / "two").write_bytes(b"".join(lines[100:]))
    (tmp_path / "none").touch()
    sources = [tmp_path / name for name in ("one", "two", "none")]
    write_sorted(sources, tmp_path / "out.gz", tmp_path, run_bytes)
    write_sorted(sources[::-1], tmp_path / "again.gz", tmp_path)
    assert gzip.decompress((tmp_path / "out.gz").read_bytes()) == b"".join(sorted(lines))
    assert (tmp_path / "out.gz").read_bytes() == (tmp_path / "again.gz").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.gz", "none", "one", "out.gz", "two"]


def peak_bytes(work):
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_writing_all_answers_takes_the_same_memory_for_ten_times_as_many(tmp_path):
    peaks = []
    for count in (1_000, 10_000):
        path = tmp_path / f"{count}.jsonl"
        path.write_bytes(b"".join(b"%08d %s\n" % (-number % 10**8, b"x" * 90) for number in range(count)))
        peaks.append(peak_bytes(lambda source=path: write_sorted([source], tmp_path / "out.gz", tmp_path, 50_000)))
    assert peaks[1] < 1.5 * peaks[0]
    assert peaks[1] < 1_000_000, "the file itself has a megabyte"


def test_an_open_ledger_holds_a_place_for_each_answer_and_not_the_answer(tmp_path):
    with Ledger(tmp_path / "l.jsonl") as ledger:
        for number in range(2_000):
            ledger.put(f"{number:064x}", f"{'long answer ' * 100}{number}", f"question {number}", 512)
    held = []

    def reopened():
        with Ledger(tmp_path / "l.jsonl") as ledger:
            held.append(sum(1 for _ in ledger.answers()))

    assert peak_bytes(reopened) / 2_000 < 500
    assert held == [2_000]
