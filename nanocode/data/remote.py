"""Files in folders and buckets, read whatever the network does: a cut read goes on at the byte it had come to.

``s3://`` goes through boto3 (credentials and AWS_ENDPOINT_URL from the environment as usual), ``gs://`` and ``file://``
through Arrow. A file is copied to disk before it is taken apart, so that one sequential read serves every format and
its sha256 can be checked first.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from nanocode.data.documents import SourceError
from nanocode.data.reading import Reading, Retry, first_line

READ_BYTES = 1 << 20
_WILDCARD = re.compile(r"[*?\[]")
_TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


class CutShort(OSError):
    """A read that ended before its end or was refused for now: worth another attempt."""


class FileSystem(Protocol):
    """Where files lie. Methods raise CutShort for what may pass, OSError for what will not."""

    def list(self, base: str) -> list[tuple[str, int, str]]:
        """Path, bytes and version tag of every file under a folder, in any order."""

    def read_from(self, path: str, tag: str, offset: int) -> Iterator[bytes]:
        """The bytes of a file from `offset` on, of that very version where the system has versions."""


@dataclass(frozen=True)
class MatchedFile:
    """A file that a glob found. `origin` is its name relative to the part of the glob before the first wildcard."""

    filesystem: FileSystem
    path: str
    origin: str
    size: int
    tag: str = ""

    def chunks(self, retry: Retry) -> Iterator[bytes]:
        """The whole file in pieces. A read that fails goes on where it was. Raises SourceError."""
        offset = failures = 0
        while True:
            try:
                for chunk in self.filesystem.read_from(self.path, self.tag, offset):
                    offset, failures = offset + len(chunk), 0
                    yield chunk
                if offset == self.size:
                    return
                raise CutShort(f"ended after {offset:,} of {self.size:,} bytes")
            except CutShort as error:
                failures += 1
                retry.pause(failures, self.origin, error)
            except OSError as error:
                raise SourceError(f"cannot read {self.origin}: {first_line(error)}") from error

    def sha256(self, retry: Retry) -> str:
        """Of the whole file, read now."""
        digest = hashlib.sha256()
        for chunk in self.chunks(retry):
            digest.update(chunk)
        return digest.hexdigest()


def find_files(glob: str, retry: Retry, where: str) -> list[MatchedFile]:
    """The files of a glob, sorted by origin; ``**`` spans folders. Raises SourceError when there are none."""
    filesystem, pattern = _open(glob, where)
    base = _base(pattern)
    relative_pattern = _glob_regex(pattern[len(base) :].lstrip("/"))
    files = []
    for path, size, tag in _listed(filesystem, base, retry, f"{where}: cannot list {glob}"):
        origin = path[len(base) :].lstrip("/")
        if relative_pattern.fullmatch(origin):
            files.append(MatchedFile(filesystem, path, origin, size, tag))
    if not files:
        raise SourceError(f"{where}: no file matches {glob!r}; correct the glob")
    return sorted(files, key=lambda file: file.origin)


@contextlib.contextmanager
def local_copy(file: MatchedFile, reading: Reading, where: str) -> Iterator[Path]:
    """The file on this machine's disk: itself when it is here, else a verified copy, gone afterwards.

    Raises SourceError when its sha256 is not the manifest's.
    """
    if isinstance(file.filesystem, ArrowFiles) and file.filesystem.is_local:
        if reading.sha256 is not None:
            _verify(file, file.sha256(reading.retry), reading, where)
        yield Path(file.path)
        return
    with tempfile.TemporaryDirectory(dir=reading.scratch, prefix="copy-") as folder:
        copy, digest = Path(folder) / "file", hashlib.sha256()
        with copy.open("wb") as stream:
            for chunk in file.chunks(reading.retry):
                digest.update(chunk)
                stream.write(chunk)
        _verify(file, digest.hexdigest(), reading, where)
        yield copy


def _verify(file: MatchedFile, found: str, reading: Reading, where: str) -> None:
    if reading.sha256 is None:
        return
    expected = reading.sha256.get(file.origin, "absent")
    if found != expected:
        raise SourceError(
            f"{where}: {file.origin} has sha256 {found}, in the manifest of this run {expected}: "
            "it changed while the run was under way; run again"
        )


def _listed(filesystem: FileSystem, base: str, retry: Retry, what: str) -> list[tuple[str, int, str]]:
    failures = 0
    while True:
        try:
            return filesystem.list(base)
        except CutShort as error:
            failures += 1
            retry.pause(failures, what, error)
        except OSError as error:
            raise SourceError(f"{what}: {first_line(error)}") from error


@dataclass(frozen=True)
class ArrowFiles:
    """A file system of Arrow's: the local one, or a Google bucket."""

    filesystem: fs.FileSystem

    @property
    def is_local(self) -> bool:
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def list(self, base: str) -> list[tuple[str, int, str]]:
        found = self.filesystem.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True))
        return [(info.path, info.size, "") for info in found if info.type == fs.FileType.File]

    def read_from(self, path: str, tag: str, offset: int) -> Iterator[bytes]:
        try:
            with self.filesystem.open_input_file(path) as stream:
                stream.seek(offset)
                while chunk := stream.read(READ_BYTES):
                    yield chunk
        except FileNotFoundError:
            raise
        except OSError as error:
            raise (error if self.is_local else CutShort(first_line(error))) from error


@dataclass(frozen=True)
class S3Files:
    """One bucket of S3 or of a server that speaks its protocol."""

    client: Any
    bucket: str

    def list(self, base: str) -> list[tuple[str, int, str]]:
        prefix = base.removeprefix(self.bucket).strip("/")
        with _boto_errors(f"s3://{base}"):
            pages = self.client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=f"{prefix}/" if prefix else ""
            )
            objects = [item for page in pages for item in page.get("Contents", ())]
        return [(f"{self.bucket}/{item['Key']}", item["Size"], item["ETag"]) for item in objects]

    def read_from(self, path: str, tag: str, offset: int) -> Iterator[bytes]:
        with _boto_errors(f"s3://{path}"):
            answer = (
                self.client.get_object(
                    Bucket=self.bucket, Key=path[len(self.bucket) + 1 :], IfMatch=tag, Range=f"bytes={offset}-"
                )
                if offset
                else self.client.get_object(Bucket=self.bucket, Key=path[len(self.bucket) + 1 :], IfMatch=tag)
            )
            yield from answer["Body"].iter_chunks(READ_BYTES)


@contextlib.contextmanager
def _boto_errors(what: str) -> Iterator[None]:
    """boto3's errors as CutShort or OSError."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if status == 412:
            raise OSError(f"{what} was replaced while it was read; run again") from error
        raise (CutShort if status in _TRANSIENT_STATUS else OSError)(f"{what}: {first_line(error)}") from error
    except NoCredentialsError as error:
        raise OSError(f"{what}: {first_line(error)}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") from error
    except (BotoCoreError, HTTPError) as error:
        raise CutShort(f"{what}: {first_line(error)}") from error


def _open(glob: str, where: str) -> tuple[FileSystem, str]:
    """The file system of a glob and the pattern within it; a local pattern becomes absolute."""
    scheme = urlsplit(glob).scheme if "://" in glob else ""
    if not scheme:
        return ArrowFiles(fs.LocalFileSystem()), (Path.cwd() / Path(glob).expanduser()).as_posix()
    if scheme == "s3":
        path = glob.removeprefix("s3://")
        return S3Files(_s3_client(), path.partition("/")[0]), path
    base = _base(glob)
    try:
        filesystem, path = fs.FileSystem.from_uri(base)
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"{where}: cannot open {glob}: {first_line(error)}") from error
    return ArrowFiles(filesystem), path.rstrip("/") + "/" + glob[len(base) :].lstrip("/")


def _s3_client() -> Any:
    import boto3
    from botocore.config import Config

    # One owner of retries: ours, which goes on inside an object.
    once = Config(retries={"total_max_attempts": 1, "mode": "standard"}, connect_timeout=20, read_timeout=60)
    return boto3.Session().client("s3", config=once)


def _base(pattern: str) -> str:
    """The folder before the first wildcard; without one, the folder of the file."""
    wildcard = _WILDCARD.search(pattern)
    head = pattern[: wildcard.start()] if wildcard else pattern
    return head[: head.rindex("/")] or "/"


def _glob_regex(pattern: str) -> re.Pattern[str]:
    """``**/`` matches any number of folders; ``*``, ``?`` and ``[...]`` stay within one name."""
    parts = ["(?:[^/]+/)*" if name == "**" else _name_regex(name) + "/" for name in pattern.split("/")]
    return re.compile("".join(parts).removesuffix("/"))


def _name_regex(name: str) -> str:
    parts = []
    for piece in re.split(r"(\*|\?|\[!?[^\]]+\])", name):
        if piece == "*":
            parts.append("[^/]*")
        elif piece == "?":
            parts.append("[^/]")
        elif piece.startswith("[") and piece.endswith("]"):
            parts.append("(?!/)[" + re.sub("^!", "^", piece[1:-1]).replace("\\", r"\\") + "]")
        else:
            parts.append(re.escape(piece))
    return "".join(parts)
