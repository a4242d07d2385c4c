"""The object store in a bucket of S3, or of a server that speaks its protocol (AWS_ENDPOINT_URL).

One owner of retries, and it is this project: boto's own are off. They would repeat a conditional write whose answer was
lost, be told that the object exists, and report a race as lost that was won.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from botocore.exceptions import ClientError

from artifacts.bucket_store import ABSENT, WRITER, BucketStore, Look, check_sha256
from artifacts.records import Warn, silent
from artifacts.retry import Patience
from artifacts.s3_client import s3_client
from artifacts.s3_errors import S3_ERRORS, TornAnswer, code_of, may_pass, reason, status_of
from artifacts.store import MissingObject, StoreError
from artifacts.transfer import Transfers

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0

_MISSING = frozenset({"NoSuchKey", "404"})
_NOT_UNDERSTOOD = frozenset({"NotImplemented", "InvalidArgument", "InvalidRequest"})


class _UploadLost(StoreError):
    """The server forgot an unfinished upload: a rule of the bucket's, or a torn request to finish it."""


class S3Store(BucketStore):
    """Objects in a bucket of S3. `timeout` is seconds to connect, and without a byte from the server.

    `unsafe` lets conditional writes be imitated where the server has none (two racers may then both win).
    """

    scheme = "s3"
    errors = S3_ERRORS

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        unsafe: bool = False,
        warn: Warn = silent,
        patience: Patience | None = None,
        transfers: Transfers | None = None,
        timeout: tuple[float, float] = (CONNECT_SECONDS, READ_SECONDS),
    ) -> None:
        super().__init__(bucket, prefix, patience=patience, transfers=transfers)
        self._unsafe, self._warn, self._timeout = unsafe, warn, timeout
        self._lock = threading.Lock()
        self._has_conditions: bool | None = None

    @functools.cached_property
    def _client(self) -> Any:
        return s3_client(self._timeout)

    def _may_pass(self, error: Exception) -> bool:
        return may_pass(error)

    def _is_missing(self, error: Exception) -> bool:
        return code_of(error) in _MISSING

    def _status(self, error: Exception) -> int:
        return status_of(error)

    def _reason(self, error: Exception) -> str:
        return reason(error, self._client.meta.endpoint_url)

    def _put(self, key: str, data: bytes, mark: str | None = None, tag: str | None = None) -> None:
        condition = {} if tag is None else {"IfNoneMatch": "*"} if tag == ABSENT else {"IfMatch": tag}
        put = functools.partial(
            self._client.put_object,
            Bucket=self.bucket,
            Key=key,
            Body=data,
            ChecksumSHA256=_checksum(data),
            Metadata={} if mark is None else {WRITER: mark},
            **condition,
        )
        self._call("store", key, put)

    def _put_large(self, key: str, file: BinaryIO, size: int, sha256: str | None) -> None:
        for _ in range(self._patience.attempts - 1):
            try:
                return self._upload(key, file, size, sha256)
            except _UploadLost:
                file.seek(0)
        self._upload(key, file, size, sha256)

    def _upload(self, key: str, file: BinaryIO, size: int, sha256: str | None) -> None:
        at, mark = {"Bucket": self.bucket, "Key": key}, uuid.uuid4().hex
        begin = functools.partial(
            self._client.create_multipart_upload, **at, ChecksumAlgorithm="SHA256", Metadata={WRITER: mark}
        )
        upload = {**at, "UploadId": self._call("store", key, begin)["UploadId"]}

        def send(number: int, data: bytes) -> dict[str, Any]:
            checksum = _checksum(data)
            part = functools.partial(
                self._client.upload_part, **upload, PartNumber=number, Body=data, ChecksumSHA256=checksum
            )
            answer = self._call("store", key, part)
            return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumSHA256": checksum}

        try:
            parts, found = self._transfers.send(file, size, send)
            check_sha256(Path(file.name), found, sha256)
            self._complete(key, upload, parts, mark)
        except BaseException:
            self._abort(key, upload)
            raise

    def _complete(self, key: str, upload: dict[str, str], parts: Sequence[dict[str, Any]], mark: str) -> None:
        complete = functools.partial(self._client.complete_multipart_upload, **upload, MultipartUpload={"Parts": parts})
        try:
            self._call("store", key, complete)
        except StoreError as error:
            if self._bears(key, mark):
                return  # the answer to an earlier attempt was lost
            if isinstance(error.__cause__, ClientError) and code_of(error.__cause__) == "NoSuchUpload":
                raise _UploadLost(str(error)) from error
            raise

    def _abort(self, key: str, upload: dict[str, str]) -> None:
        """Leave no parts behind, if one attempt is enough; buckets can drop unfinished uploads by a rule of theirs."""
        try:
            self._client.abort_multipart_upload(**upload)
        except S3_ERRORS as error:
            self._warn(f"parts of an unfinished upload stay behind {self._named(key)}: {self._reason(error)}")

    def _whole(self, key: str) -> tuple[bytes, str]:
        def get() -> tuple[bytes, str]:
            answer = self._client.get_object(Bucket=self.bucket, Key=key, ChecksumMode="ENABLED")
            return _body(answer, answer["ContentLength"]), answer["ETag"]

        return self._call("read", key, get)

    def _first_part(self, key: str) -> tuple[bytes, int, str]:
        def get() -> tuple[bytes, int, str]:
            try:
                answer = self._client.get_object(Bucket=self.bucket, Key=key, Range=self._span(0))
            except S3_ERRORS as error:
                if status_of(error) == 416:  # an empty object has no first byte
                    return b"", 0, ""
                raise
            size = int(answer["ContentRange"].rpartition("/")[2])
            return _body(answer, self._part_length(size)), size, answer["ETag"]

        return self._call("read", key, get)

    def _part(self, key: str, tag: str, size: int, start: int) -> bytes:
        def get() -> bytes:
            answer = self._client.get_object(Bucket=self.bucket, Key=key, Range=self._span(start), IfMatch=tag)
            return _body(answer, self._part_length(size, start))

        return self._call("read", key, get)

    def _span(self, start: int) -> str:
        return f"bytes={start}-{start + self._transfers.part_bytes - 1}"

    def _look(self, key: str) -> Look | None:
        try:
            head = self._call("look at", key, lambda: self._client.head_object(Bucket=self.bucket, Key=key))
        except MissingObject:
            return None
        mark = head.get("Metadata", {}).get(WRITER)
        return Look(head["ContentLength"], head["ETag"], head["LastModified"].timestamp(), mark)

    def _keys(self, prefix: str) -> Iterator[str]:
        arguments = {"Bucket": self.bucket, "Prefix": prefix}
        while True:
            page = self._call("list", prefix, functools.partial(self._client.list_objects_v2, **arguments))
            yield from (item["Key"] for item in page.get("Contents", ()))
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]

    def _remove(self, key: str) -> None:
        self._call("delete", key, lambda: self._client.delete_object(Bucket=self.bucket, Key=key))

    def _put_if(self, key: str, data: bytes, tag: str) -> bool:
        self._marker.ensure(self)
        if self._may_condition():
            return super()._put_if(key, data, tag)
        found = self._look(key)
        if (ABSENT if found is None else found.tag) != tag:
            return False
        self._put(key, data)
        return True

    def _may_condition(self) -> bool:
        """Whether conditional writes work here, tried once. Raises StoreError when not, unless `unsafe`."""
        with self._lock:
            if self._has_conditions is None:
                self._has_conditions = self._probe()
                if not self._has_conditions and self._unsafe:
                    self._warn(f"store {self.url} has no conditional writes: two runs at once may spoil each other")
        if not self._has_conditions and not self._unsafe:
            raise StoreError(
                f"store {self.url} has no conditional writes (If-None-Match, If-Match), so two runs could both think "
                "that they won: use another server, or run alone with unsafe_leases = true in [store]"
            )
        return self._has_conditions

    def _probe(self) -> bool:
        """Whether the server refuses what it should refuse, seen on an object of the probe's own."""
        key = f"{self.prefix}probe/{uuid.uuid4().hex}"
        attempts = ((ABSENT, True), (ABSENT, False), ('"0123456789abcdef0123456789abcdef"', False))
        try:
            return all(BucketStore._put_if(self, key, b"probe", tag) is taken for tag, taken in attempts)
        except StoreError as error:
            cause = error.__cause__
            if isinstance(cause, ClientError) and (status_of(cause) == 501 or code_of(cause) in _NOT_UNDERSTOOD):
                return False
            raise
        finally:
            self._remove(key)


def _body(answer: dict[str, Any], expected: int) -> bytes:
    """The body of an answer. Raises TornAnswer when it is not of the expected length."""
    data: bytes = answer["Body"].read()
    if len(data) != expected:
        raise TornAnswer(f"{len(data):,} of {expected:,} bytes came")
    return data


def _checksum(data: bytes) -> str:
    return base64.b64encode(hashlib.sha256(data).digest()).decode("ascii")
