"""Flat arrays in files: NumPy's own ``.npy`` (version 1.0), little-endian, written piece by piece and read as maps."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

HEADER_BYTES = 128  # a whole number of 64-byte units, as NumPy aligns its data; one size whatever the length


class ArrayFileError(ValueError):
    """A folder of arrays that is not there, not whole or not of this format. The message is one line."""


class GrowingArray:
    """A one-dimensional array file that grows by appending; a context manager. Memory: what is being appended."""

    def __init__(self, path: Path, dtype: np.dtype[Any] | str) -> None:
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.length = 0
        self._file = path.open("wb")
        self._file.write(_header(self.dtype, 0))

    def __enter__(self) -> GrowingArray:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, values: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(values, dtype=self.dtype).data)
        self.length += len(values)

    def close(self) -> None:
        """Complete the header: only now is the length known."""
        self._file.seek(0)
        self._file.write(_header(self.dtype, self.length))
        self._file.close()


def map_array(path: Path, dtype: np.dtype[Any] | str, length: int) -> np.ndarray:
    """A read-only memory map of an array file. Raises ArrayFileError unless it is whole and as expected."""
    expected = np.dtype(dtype).newbyteorder("<")
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
    except OSError as error:
        raise ArrayFileError(f"{path} cannot be read ({error.strerror}); make it again") from None
    whole = HEADER_BYTES + length * expected.itemsize
    if header != _header(expected, length) or size != whole:
        raise ArrayFileError(
            f"{path} ({size:,} bytes) is not the array of {length:,} {expected} values ({whole:,} bytes) that its "
            "index promises; make it again"
        )
    return np.memmap(path, expected, "r", HEADER_BYTES, (length,))


def _header(dtype: np.dtype[Any], length: int) -> bytes:
    """The header of NumPy's format 1.0, as numpy.lib.format describes it."""
    magic = b"\x93NUMPY\x01\x00"
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({length},), }}"
    room = HEADER_BYTES - len(magic) - 2
    return magic + struct.pack("<H", room) + text.ljust(room - 1).encode("latin1") + b"\n"


def write_index(path: Path, content: Mapping[str, Any]) -> None:
    """The JSON file that says what stands beside it; written last, it completes the folder."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_index(path: Path, version: int, fields: Mapping[str, type]) -> dict[str, Any]:
    """The index of a folder, with `fields` of the right types. Raises ArrayFileError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArrayFileError(f"{path} is missing: its folder was never completed; make it again") from None
    except (OSError, ValueError) as error:
        raise ArrayFileError(f"{path} is not a JSON index ({str(error).splitlines()[0]}); make it again") from error
    found = content.get("format") if isinstance(content, dict) else None
    if found != version:
        raise ArrayFileError(f"{path} is of format {found}, this version reads format {version}; make it again")
    for name, kind in fields.items():
        if not isinstance(content.get(name), kind):
            raise ArrayFileError(f"{path}: {name} must be {kind.__name__}, got {content.get(name)!r}; make it again")
    return content
