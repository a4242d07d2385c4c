"""Every kind of source behind two functions: its documents in blocks, and the manifest that names its bytes."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from typing import Any

from nanocode.config import AnySource, FilesSource, HubSource, PythonStdlibSource
from nanocode.data import python_sources
from nanocode.data.documents import SourceError
from nanocode.data.reading import Block, Reading, Retry, counted_blocks

BLOCK_DOCUMENTS = 128  # of the Python kinds


def read_blocks(source: AnySource, reading: Reading, start: Mapping[str, Any] | None = None) -> Iterator[Block]:
    """The documents of a source, unfiltered, in an order fixed by their names, from the place `start` on.

    Raises SourceError.
    """
    if isinstance(source, FilesSource):
        from nanocode.data.file_sources import file_blocks

        return file_blocks(source, reading, start)
    if isinstance(source, HubSource):
        from nanocode.data.hub_source import hub_blocks

        return hub_blocks(source, reading, start)
    root = python_sources.stdlib_root()
    if isinstance(source, PythonStdlibSource):
        documents = python_sources.stdlib_documents(root)
    else:
        documents = python_sources.docs_documents(root, python_sources.manual_root())
    return counted_blocks(documents, BLOCK_DOCUMENTS, start)


def source_manifest(source: AnySource, retry: Retry) -> bytes:
    """Canonical JSON that names the raw bytes: the record from which lineage starts, and part of the cache key.

    Files: origin, bytes and sha256 of each (which reads them all); the Python kinds add the interpreter's version,
    which decides what its syntax tree says; the Hub kind is named by its pinned revision. Raises SourceError when
    nothing is there.
    """
    return json.dumps(_manifest(source, retry), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def manifest_digests(manifest: bytes) -> dict[str, str] | None:
    """The sha256 of every file by origin; None for a source that is not made of files."""
    listed = json.loads(manifest).get("files")
    return None if listed is None else {entry["origin"]: entry["sha256"] for entry in listed}


def _manifest(source: AnySource, retry: Retry) -> dict[str, Any]:
    if isinstance(source, HubSource):
        return {
            "kind": source.kind,
            "licence": source.licence,
            "dataset": source.dataset,
            "revision": source.revision,
            "subset": source.subset,
            "split": source.split,
            "data_files": list(source.data_files),
        }
    if isinstance(source, FilesSource):
        from nanocode.data.file_sources import matched_files

        files = [
            {"origin": file.origin, "bytes": file.size, "sha256": file.sha256(retry)}
            for file in matched_files(source, retry)
        ]
        return {"kind": source.kind, "licence": source.licence, "files": files}
    root = python_sources.stdlib_root()
    if isinstance(source, PythonStdlibSource):
        found = python_sources.stdlib_files(root)
    else:
        found = python_sources.docs_files(root, python_sources.manual_root())
    if not found:
        raise SourceError(f"data source {source.name!r}: this Python has no standard library sources under {root}")
    return {
        "kind": source.kind,
        "licence": python_sources.LICENCE,
        "python": platform.python_version(),
        "files": [_identity(file) for file in found],
    }


def _identity(file: python_sources.SourceFile) -> dict[str, Any]:
    with file.path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"origin": file.origin, "bytes": file.path.stat().st_size, "sha256": digest}
