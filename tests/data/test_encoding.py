"""Encoding on many processes gives what one gives, in order; what goes wrong there is said here."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nanocode.data import encoding
from nanocode.data.encoding import Encoded, EncodingError, encode_documents
from nanocode.tokenizer import Tokenizer, TokenizerError

TEXTS = [f"def f{number}(x):\n    return x * {number}\n" * (number % 7 + 1) for number in range(120)] + ["", "ä ☃ 漢字"]


@pytest.fixture
def saved(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    tokenizer.save(tmp_path / "tokenizer.json")
    return tmp_path / "tokenizer.json"


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "CHUNK_CHARACTERS", 500)


def documents(stream: Iterator[Encoded]) -> list[list[int]]:
    return [
        own.tolist()
        for encoded in stream
        for own in np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1])
        if len(encoded.lengths)
    ]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_every_document_comes_in_order_behind_its_bos(tokenizer: Tokenizer, saved: Path, processes: int) -> None:
    expected = [[tokenizer.bos, *tokenizer.encode(text)] for text in TEXTS]
    assert documents(encode_documents(saved, iter(TEXTS), processes)) == expected


@pytest.mark.parametrize("processes", [1, 2])
def test_no_texts_give_nothing(saved: Path, processes: int) -> None:
    assert list(encode_documents(saved, [], processes)) == []


@pytest.mark.usefixtures("small_chunks")
def test_texts_are_read_as_they_are_needed(saved: Path) -> None:
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield "word " * 100

    stream = encode_documents(saved, endless(), 2)
    next(stream)
    stream.close()
    assert taken <= 6, "two chunks in work, two waiting, one given out, one in hand"


def test_a_bad_tokenizer_is_named_before_any_process_starts(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="no tokenizer at"):
        next(encode_documents(tmp_path / "tokenizer.json", ["text"], 2))


@pytest.mark.usefixtures("small_chunks")
def test_an_error_in_the_texts_passes_through_and_ends_the_workers(saved: Path) -> None:
    def broken() -> Iterator[str]:
        yield from TEXTS[:60]
        raise OSError("the shard is gone")

    with pytest.raises(OSError, match="the shard is gone"):
        list(encode_documents(saved, broken(), 2))


def test_what_a_worker_cannot_encode_is_reported(saved: Path) -> None:
    with pytest.raises(EncodingError, match="a tokenizing process failed"):
        list(encode_documents(saved, ["fine", "half a surrogate pair: \ud800"], 2))


def test_a_worker_that_dies_is_reported(saved: Path) -> None:
    worker = encoding._Worker(saved)
    worker._process.kill()
    with pytest.raises(EncodingError, match="ended with status -9"):
        worker.encode(["text"])
    worker.close()


def test_a_worker_ends_when_its_parent_is_killed(saved: Path) -> None:
    code = (
        "import sys, time, pathlib; from nanocode.data.encoding import _Worker;"
        "w = _Worker(pathlib.Path(sys.argv[1])); w.encode(['x']); print(w._process.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(saved)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = Path("/proc") / parent.stdout.readline().strip()
    assert worker.exists()
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 10
    while worker.exists() and (worker / "cmdline").read_bytes():  # a zombie that nobody reaps has no command line
        assert time.monotonic() < deadline, "the worker outlived its parent"
        time.sleep(0.01)
