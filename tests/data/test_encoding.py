"""Encoding on many processes gives what one gives, in order, each document behind its BOS."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from nanocode import tokenizer as tokenizer_module
from nanocode.data.encoding import Encoded, encode_documents
from nanocode.tokenizer import Tokenizer, TokenizerError

TEXTS = [f"def f{number}(x):\n    return x * {number}\n" * (number % 7 + 1) for number in range(120)] + ["", "ä ☃ 漢字"]

SHARDS = {"first": TEXTS[:50], "second": TEXTS[50:51], "third": TEXTS[51:]}


@pytest.fixture
def saved(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    tokenizer.save(tmp_path / "tokenizer.json")
    return tmp_path / "tokenizer.json"


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "CHUNK_CHARACTERS", 500)


def documents(stream: Iterable[tuple[str, Encoded]]) -> list[tuple[str, list[int]]]:
    return [
        (name, own.tolist())
        for name, encoded in stream
        for own in np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1])
    ]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_every_document_comes_in_order_behind_its_bos(tokenizer: Tokenizer, saved: Path, processes: int) -> None:
    expected = [(name, [tokenizer.bos, *tokenizer.encode(text)]) for name, texts in SHARDS.items() for text in texts]
    assert documents(encode_documents(saved, SHARDS.items(), processes)) == expected


@pytest.mark.parametrize("processes", [1, 2])
def test_no_texts_give_nothing(saved: Path, processes: int) -> None:
    assert list(encode_documents(saved, [("empty", [])], processes)) == []


def test_a_bad_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="no tokenizer at"):
        next(encode_documents(tmp_path / "tokenizer.json", [("one", ["text"])], 2))
