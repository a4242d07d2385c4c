"""A file that only grows: whole pieces, one process, nobody else's eyes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nanocode.growing_file import FileInUseError, GrowingFile

ROOT = Path(__file__).parents[1]


def test_pieces_lie_where_append_says(tmp_path: Path) -> None:
    pieces = [b"one\n", b"", b"three\n"]
    with GrowingFile(tmp_path / "new" / "file") as file:
        places = [file.append(piece) for piece in pieces]
        assert [file.read(place, len(piece)) for place, piece in zip(places, pieces, strict=True)] == pieces
        assert file.size == len(b"".join(pieces))
    with GrowingFile(tmp_path / "new" / "file") as file:
        assert file.append(b"four\n") == len(b"".join(pieces))


def test_what_was_cut_off_makes_room_for_the_next_piece(tmp_path: Path) -> None:
    with GrowingFile(tmp_path / "file") as file:
        file.append(b"whole\ntor")
        file.cut(len(b"whole\n"))
        file.append(b"next\n")
    assert (tmp_path / "file").read_bytes() == b"whole\nnext\n"


def test_a_second_holder_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with GrowingFile(path), pytest.raises(FileInUseError, match="is in use by another process"):
        GrowingFile(path)
    GrowingFile(path).close()


def test_a_piece_for_which_there_is_no_room_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "file"
    program = (
        "import resource, signal, sys, pathlib; from nanocode.growing_file import DiskFullError, GrowingFile\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "file = GrowingFile(pathlib.Path(sys.argv[1])); file.append(b'12345678')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        "try:\n    file.append(b'abcdefgh')\nexcept DiskFullError as error:\n    print(error)\n"
        "file.append(b'90')\n"
    )
    done = subprocess.run([sys.executable, "-c", program, path], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"{path}: the disk took 2 of 8 bytes: free some space\n"), done.stderr
    assert path.read_bytes() == b"1234567890"


def test_a_private_file_is_its_owners_alone_and_never_behind_a_link(tmp_path: Path) -> None:
    GrowingFile(tmp_path / "own" / "file", private=True).close()
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "own", tmp_path / "own" / "file")] == [0o700, 0o600]
    (tmp_path / "own" / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="link"):
        GrowingFile(tmp_path / "own" / "link", private=True)
    assert not (tmp_path / "elsewhere").exists()
