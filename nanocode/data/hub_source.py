"""A Hugging Face dataset, streamed at a pinned revision.

Shards are read in a shuffled order through a shuffle buffer, so that a limit on the bytes taken does not keep the first
shard alone. A row is named by its place in that stream, which the revision fixes.
"""

from __future__ import annotations

from collections.abc import Iterator

from nanocode.config import HubSource
from nanocode.data.documents import RawDocument, SourceError

SHUFFLE_SEED = 0
SHUFFLE_BUFFER_ROWS = 10_000


def hub_documents(source: HubSource) -> Iterator[RawDocument]:
    """The rows of the split. Raises SourceError when the dataset, the revision or the column is not there."""
    import datasets  # seconds to import, and only this kind of source needs it

    where = f"data source {source.name!r}: {source.dataset} at {source.revision}"
    try:
        stream = datasets.load_dataset(
            source.dataset, source.subset, split=source.split, revision=source.revision, streaming=True
        )
        shuffled = stream.shuffle(seed=SHUFFLE_SEED, buffer_size=SHUFFLE_BUFFER_ROWS)
        for number, row in enumerate(shuffled):
            if source.text_column not in row:
                raise SourceError(
                    f"{where} has no column {source.text_column!r}; set text_column to one of: {', '.join(sorted(row))}"
                )
            yield _row(row[source.text_column], number, source)
    except SourceError:
        raise
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SourceError(f"{where} cannot be read: {reason}; check the name, the revision and the network") from error


def _row(text: object, number: int, source: HubSource) -> RawDocument:
    origin = f"{source.dataset}/{source.subset or 'default'}/{source.split}@{source.revision}#{number}"
    content = "" if text is None else text
    if not isinstance(content, str):
        return RawDocument(b"", origin, source.licence, group=origin, fault="not_text")
    return RawDocument(content, origin, source.licence, group=origin)
