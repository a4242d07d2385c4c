"""Texts to tokens on all cores: a stream of documents in, a stream of arrays out, in the same order.

Each worker is a process with a tokenizer of its own at the end of two pipes. It shares no signal with this process and
ends when its input does: because the work is done, or because this process was killed. Memory: two chunks of text and
their tokens for each worker.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np

from nanocode.tokenizer import Tokenizer

CHUNK_CHARACTERS = 1 << 20
_PACKAGES = Path(__file__).resolve().parents[2]
_SERVE = "import sys; from nanocode.data.encoding import serve; serve(sys.argv[1])"


class Encoded(NamedTuple):
    """Documents end to end, each behind its BOS."""

    ids: np.ndarray  # (tokens,) int32
    lengths: np.ndarray  # (documents,) int64


class EncodingError(RuntimeError):
    """A worker that failed or went away."""


def encode_chunk(tokenizer: Tokenizer, texts: Iterable[str]) -> Encoded:
    """Documents of `texts`, encoded here and now."""
    bos = np.array([tokenizer.bos], dtype=np.int32)
    documents = [np.concatenate([bos, tokenizer.encode_array(text)]) for text in texts]
    lengths = np.array([len(document) for document in documents], dtype=np.int64)
    return Encoded(np.concatenate([bos[:0], *documents]), lengths)


def encode_documents(tokenizer: Path, texts: Iterable[str], processes: int) -> Iterator[Encoded]:
    """The documents in order, about a megabyte of text at a time, by `processes` workers (1: none, encoded here).

    Raises TokenizerError for a bad tokenizer file, EncodingError when a worker fails, and what `texts` raises.
    """
    loaded = Tokenizer.load(tokenizer)  # a bad file fails here, once and with its own words
    chunks = _chunks(texts)
    if processes == 1:
        yield from (encode_chunk(loaded, chunk) for chunk in chunks)
        return
    idle: SimpleQueue[_Worker] = SimpleQueue()
    workers: list[_Worker] = []
    waiting: deque[Future[Encoded]] = deque()

    def encode(chunk: list[str]) -> Encoded:
        worker = idle.get()
        try:
            return worker.encode(chunk)
        finally:
            idle.put(worker)

    try:
        with ThreadPoolExecutor(processes, "encoding") as threads:  # they wait for the workers
            for chunk in chunks:
                if len(workers) < processes:
                    workers.append(_Worker(tokenizer))
                    idle.put(workers[-1])
                if len(waiting) == 2 * processes:
                    yield waiting.popleft().result()
                waiting.append(threads.submit(encode, chunk))
            while waiting:
                yield waiting.popleft().result()
    finally:
        for worker in workers:
            worker.close()


def serve(tokenizer_path: str) -> None:
    """A worker's whole life: lists of texts on stdin, their tokens (or what went wrong) on stdout."""
    tokenizer = Tokenizer.load(tokenizer_path)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            texts = pickle.load(source)
        except EOFError:
            return
        try:
            answer: Encoded | str = encode_chunk(tokenizer, texts)
        except Exception as error:  # noqa: BLE001  # reported where the chunk is asked for
            answer = f"{type(error).__name__}: {error}"
        try:
            pickle.dump(answer, sink, protocol=pickle.HIGHEST_PROTOCOL)
            sink.flush()
        except BrokenPipeError:
            os._exit(0)  # nobody waits for the answer; a normal end would try to flush it again


class _Worker:
    """One process that encodes one chunk at a time."""

    def __init__(self, tokenizer: Path) -> None:
        path = os.pathsep.join([str(_PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, str(tokenizer)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            process_group=0,
        )

    def encode(self, texts: list[str]) -> Encoded:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            pickle.dump(texts, self._process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
            self._process.stdin.flush()
            answer = pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            status = self._process.wait()
            raise EncodingError(f"a tokenizing process ended with status {status}: is memory short?") from None
        if isinstance(answer, str):
            raise EncodingError(f"a tokenizing process failed: {answer}")
        return answer

    def close(self) -> None:
        """End the process; one that is still at work loses it."""
        self._process.kill()
        self._process.communicate()


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    """Whole texts, about `CHUNK_CHARACTERS` of them at a time."""
    chunk: list[str] = []
    size = 0
    for text in texts:
        chunk.append(text)
        size += len(text)
        if size >= CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
