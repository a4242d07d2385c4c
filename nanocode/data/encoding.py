"""Texts to tokens on all cores: a stream of documents in, a stream of arrays out, in the same order."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanocode.tokenizer import Tokenizer, chunked
from nanocode.workers import in_processes


class Encoded(NamedTuple):
    """Documents end to end, each behind its BOS."""

    ids: np.ndarray  # (tokens,) int32
    lengths: np.ndarray  # (documents,) int64


def encode_documents(
    tokenizer: Path, shards: Iterable[tuple[str, Iterable[str]]], processes: int
) -> Generator[tuple[str, Encoded], None, None]:
    """The documents of named shards in order, about a megabyte of text at a time, each time with the shard's name.

    Raises TokenizerError for a bad tokenizer file, WorkerError when a process fails, and what `shards` raises.
    """
    chunks = ((name, chunk) for name, texts in shards for chunk in chunked(texts))
    return in_processes(encoder, [str(tokenizer)], chunks, processes)


def encoder(tokenizer: str) -> Callable[[tuple[str, list[str]]], tuple[str, Encoded]]:
    """A function that encodes some documents of a shard."""
    loaded = Tokenizer.load(tokenizer)
    bos = np.array([loaded.bos], dtype=np.int32)

    def encode(chunk: tuple[str, list[str]]) -> tuple[str, Encoded]:
        name, texts = chunk
        documents = [np.concatenate([bos, loaded.encode_array(text)]) for text in texts]
        lengths = np.array([len(document) for document in documents], dtype=np.int64)
        return name, Encoded(np.concatenate(documents), lengths)

    return encode
