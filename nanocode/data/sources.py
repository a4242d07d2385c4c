"""Every kind of source behind two functions: its documents, and the manifest that names its bytes."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator
from typing import Any

from nanocode.config import AnySource, FilesSource, HubSource, PythonDocsSource, PythonStdlibSource
from nanocode.data import python_sources
from nanocode.data.documents import RawDocument, SourceError

_READ_BYTES = 1 << 20


def raw_documents(source: AnySource) -> Iterator[RawDocument]:
    """The documents of a source, unfiltered, in an order fixed by their names. Raises SourceError."""
    if isinstance(source, PythonStdlibSource):
        return python_sources.stdlib_documents(python_sources.stdlib_root())
    if isinstance(source, PythonDocsSource):
        return python_sources.docs_documents(python_sources.stdlib_root(), python_sources.manual_root())
    if isinstance(source, FilesSource):
        from nanocode.data.file_sources import file_documents

        return file_documents(source)
    from nanocode.data.hub_source import hub_documents

    return hub_documents(source)


def source_manifest(source: AnySource) -> bytes:
    """Canonical JSON that names the raw bytes: the record from which lineage starts, and part of the cache key.

    Files: origin, bytes and sha256 of each (which reads them all); the Python kinds add the interpreter's version,
    which decides what its syntax tree says; the Hub kind is named by its pinned revision. Raises SourceError when
    nothing is there.
    """
    return json.dumps(_manifest(source), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def _manifest(source: AnySource) -> dict[str, Any]:
    if isinstance(source, HubSource):
        return {
            "kind": source.kind,
            "licence": source.licence,
            "dataset": source.dataset,
            "revision": source.revision,
            "subset": source.subset,
            "split": source.split,
        }
    if isinstance(source, FilesSource):
        from nanocode.data.file_sources import matched_files

        files = [_identity(file.origin, file.open()) for file in matched_files(source)]
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
        "files": [_identity(file.origin, file.path.open("rb")) for file in found],
    }


def _identity(origin: str, stream: Any) -> dict[str, Any]:
    """Name, size and sha256 of one file; closes the stream."""
    digest, size = hashlib.sha256(), 0
    with stream:
        while chunk := stream.read(_READ_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return {"origin": origin, "bytes": size, "sha256": digest.hexdigest()}
