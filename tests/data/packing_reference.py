"""nanochat's packer, read naively: lists, linear search, nothing in common with the module that it checks."""

from __future__ import annotations

from collections.abc import Sequence


def corpus(sizes: Sequence[int], bos: int = 0) -> list[list[int]]:
    """Documents whose tokens name document and position, so that each token can be traced."""
    return [[bos, *(1_000 * (index + 1) + at for at in range(1, size))] for index, size in enumerate(sizes)]


def pack_documents(
    documents: Sequence[Sequence[int]],
    row_tokens: int,
    buffer_documents: int = 1_000,
    refill: int = 128,
    keep_rest: bool = False,
) -> list[list[int]]:
    """The full rows: the largest buffered document that fits, else a piece of the shortest, and its rest put back as a
    document behind a BOS or dropped."""
    waiting, buffer, rows = [list(document) for document in documents], [], []
    while True:
        row: list[int] = []
        while len(row) < row_tokens:
            while len(buffer) < buffer_documents and waiting:
                buffer, waiting = buffer + waiting[:refill], waiting[refill:]
            if not buffer:
                return rows
            space = row_tokens - len(row)
            fitting = [document for document in buffer if len(document) <= space]
            chosen = max(fitting, key=len) if fitting else min(buffer, key=len)
            buffer = [document for document in buffer if document is not chosen]
            row += chosen[:space]
            if keep_rest and not fitting:
                buffer.append([chosen[0], *chosen[space:]])
        rows.append(row)
