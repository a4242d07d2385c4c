"""A Hugging Face dataset, streamed at a pinned revision.

Files are visited in a shuffled order, several at a time, and rows are ordered by hash within blocks of `BLOCK_ROWS`, so
that a limit on the bytes taken does not keep the first file alone. A row is named by its place in that stream, which
the revision fixes. There is no shuffle buffer: what one holds is not part of a stream's state, and a stream that goes
on after a block must give exactly what it would have given.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from nanocode.config import HubSource
from nanocode.data.documents import WHOLE_ROW, RawDocument, SourceError, row_content, row_document, stable_order
from nanocode.data.reading import Block, Reading, first_line

SHUFFLE_SEED = 0
BLOCK_ROWS = 4_096
BLOCK_BYTES = 64_000_000


def hub_blocks(source: HubSource, reading: Reading, start: Mapping[str, Any] | None = None) -> Iterator[Block]:
    """The rows of the split, from `start` on. A failed read goes on after the last whole block.

    Raises SourceError when the dataset, the revision, the split or a column is not there, and when reading fails
    `max_attempts` times in a row.
    """
    import datasets  # seconds to import, and only this kind of source needs it

    where = f"data source {source.name!r}: {source.dataset} at {source.revision}"
    # The client below already tries a request several times; a second layer of twenty would hide an outage for hours.
    datasets.config.STREAMING_READ_MAX_RETRIES = 1
    place = dict(start) if start else {"row": 0, "stream": None}
    failures = 0
    while True:
        try:
            for block in _stream_blocks(source, place, where):
                place, failures = dict(block.after), 0
                yield block
            return
        except (SourceError, FileNotFoundError, datasets.exceptions.DatasetsError) as error:
            raise _refused(where, error) from error
        except (OSError, pa.ArrowException) as error:
            if getattr(getattr(error, "response", None), "status_code", 500) in (400, 401, 403, 404, 416):
                raise _refused(where, error) from error
            failures += 1
            reading.retry.pause(failures, where, error)
        except ValueError as error:
            raise _refused(where, error) from error


def _refused(where: str, error: Exception) -> SourceError:
    if isinstance(error, SourceError):
        return error
    return SourceError(
        f"{where} cannot be read: {first_line(error)}; check the name, the split, the revision and your access"
    )


def _stream_blocks(source: HubSource, place: Mapping[str, Any], where: str) -> Iterator[Block]:
    import datasets

    stream = datasets.load_dataset(
        source.dataset,
        source.subset,
        split=source.split,
        revision=source.revision,
        data_files=list(source.data_files) or None,
        streaming=True,
    ).shuffle(seed=SHUFFLE_SEED, buffer_size=1)
    if place["stream"] is not None:
        stream.load_state_dict(copy.deepcopy(place["stream"]))
    number, rows, held = place["row"], [], 0
    for row in stream:
        rows.append(_row(row, number, source, where))
        held += len(rows[-1].content)
        number += 1
        if len(rows) >= BLOCK_ROWS or held >= BLOCK_BYTES:
            yield _block(rows, number, stream)
            rows, held = [], 0
    if rows:
        yield _block(rows, number, stream)


def _block(rows: list[RawDocument], number: int, stream: Any) -> Block:
    after = {"row": number, "stream": copy.deepcopy(stream.state_dict())}
    return Block(stable_order(rows, lambda row: row.origin), after)


def _row(row: Mapping[str, Any], number: int, source: HubSource, where: str) -> RawDocument:
    for field in ("text_column", "licence_column"):
        column = getattr(source, field)
        if column not in (None, WHOLE_ROW) and column not in row:
            raise SourceError(f"{where} has no column {column!r}; set {field} to one of: {', '.join(sorted(row))}")
    origin = f"{source.dataset}/{source.subset or 'default'}/{source.split}@{source.revision}#{number}"
    licence = row[source.licence_column] if source.licence_column else None
    return row_document(row_content(row, source), licence, origin=origin, source=source)
