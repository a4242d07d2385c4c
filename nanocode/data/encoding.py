"""Texts to tokens on all cores: a stream of documents in, a stream of arrays out, in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanocode.tokenizer import Tokenizer, chunked
from nanocode.workers import in_processes


class Encoded(NamedTuple):
    """Documents end to end, each behind its BOS."""

    ids: np.ndarray  # (tokens,) int32
    lengths: np.ndarray  # (documents,) int64


def encode_documents(tokenizer: Path, texts: Iterable[str], processes: int) -> Iterator[Encoded]:
    """The documents in order, about a megabyte of text at a time.

    Raises TokenizerError for a bad tokenizer file, WorkerError when a process fails, and what `texts` raises.
    """
    return in_processes(encoder, [str(tokenizer)], chunked(texts), processes)


def encoder(tokenizer: str) -> Callable[[list[str]], Encoded]:
    """A function that encodes a list of documents."""
    loaded = Tokenizer.load(tokenizer)
    bos = np.array([loaded.bos], dtype=np.int32)

    def encode(texts: list[str]) -> Encoded:
        documents = [np.concatenate([bos, loaded.encode_array(text)]) for text in texts]
        lengths = np.array([len(document) for document in documents], dtype=np.int64)
        return Encoded(np.concatenate([bos[:0], *documents]), lengths)

    return encode
