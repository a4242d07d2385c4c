"""From an instruction source to its rows, read by `nanocode.data` as any other table is, secrets filtered."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from nanocode.config import FilesSource, FilterConfig, HubSource, InstructionSource, TableSource
from nanocode.data.documents import WHOLE_ROW, RawDocument, SourceError
from nanocode.data.filters import apply_filters
from nanocode.data.reading import Block
from nanocode.tasks.converters.plans import Drop, Row

# The column in which a set of messages brings its workspaces.
FILES_COLUMN = "files"


def table_of(source: InstructionSource) -> FilesSource | HubSource:
    """The source as a table of whole rows."""
    common: dict[str, Any] = {
        "name": source.name,
        "register_as": "code",
        "licence": source.licence,
        "licence_column": source.licence_column,
        "text_column": WHOLE_ROW,
    }
    if source.glob is not None:
        return FilesSource(kind="files", glob=source.glob, **common)
    assert source.dataset is not None and source.revision is not None, "the config checks it"
    place = {"subset": source.subset, "split": source.split, "revision": source.revision}
    return HubSource(kind="hub", dataset=source.dataset, **place, **common)


def rows_of(block: Block, source: TableSource, columns: tuple[str, ...], filters: Filters) -> Iterator[Row]:
    """The rows of a block, in `columns` (and `FILES_COLUMN`) freed of secrets.

    Raises SourceError for a file that is no table.
    """
    for document in block.documents:
        if "#" not in document.origin:
            raise SourceError(
                f"instruction source {source.name!r}: {document.origin} is no table: give .parquet or .jsonl files"
            )
        yield _row(document, (*columns, FILES_COLUMN), filters)


def _row(document: RawDocument, columns: tuple[str, ...], filters: Filters) -> Row:
    if document.fault is not None:
        return Row(document.origin, document.licence, fault=document.fault)
    try:
        values = json.loads(document.content)
        read = {name: filters.apply(value) if name in columns else value for name, value in values.items()}
    except UnicodeDecodeError:
        return Row(document.origin, document.licence, fault="not UTF-8")
    except Drop as drop:
        return Row(document.origin, document.licence, fault=drop.reason)
    return Row(document.origin, document.licence, read)


class Filters:
    """The rules for secrets and personal data over all texts of a value; `found` counts the matches by rule."""

    def __init__(self, config: FilterConfig) -> None:
        self._config = config
        self.found: Counter[str] = Counter()

    def apply(self, value: Any) -> Any:
        """The value with what has to go replaced. Raises Drop where a rule drops."""
        if isinstance(value, str):
            filtered = apply_filters(value, self._config)
            self.found.update(filtered.found)
            if filtered.dropped_for is not None:
                raise Drop(f"has_{filtered.dropped_for}")
            return filtered.text
        if isinstance(value, list):
            return [self.apply(item) for item in value]
        if isinstance(value, Mapping):
            return {key: self.apply(item) for key, item in value.items()}
        return value
