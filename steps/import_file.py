"""Stage: bytes from outside enter the lineage: the manifest of a raw source, the SOUL."""

from __future__ import annotations

from pathlib import Path


def run(name: str, content: bytes, output: Path) -> dict[str, int]:
    """Write `content` as the file `name`."""
    (output / name).write_bytes(content)
    return {"bytes": len(content)}
