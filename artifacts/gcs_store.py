"""The object store in a Google Cloud Storage bucket, through Google's own client (the optional extra `gcs`).

A version tag is the object's generation: 0 stands for "there is none". Google's client retries nothing here; its
checksums (CRC32C) are compared on both sides. A large object goes up as one resumable upload, and comes down in parts.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
from google.api_core.exceptions import GoogleAPICallError
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, RefreshError
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from requests.adapters import HTTPAdapter
from requests.exceptions import RequestException

from artifacts.bucket_store import ABSENT, WRITER, BucketStore, Look, Refused, check_sha256
from artifacts.retry import Patience
from artifacts.store import CHUNK_BYTES, MissingObject, StoreError
from artifacts.transfer import Transfers

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
CONNECTIONS = 32

_ERRORS = (GoogleAPICallError, RequestException, GoogleAuthError, DataCorruption, InvalidResponse)
_MAY_PASS_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_CREDENTIALS = "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS"
_CURES = {
    401: _CREDENTIALS,
    403: f"{_CREDENTIALS}; the account needs the role Storage Object User on the bucket",
}


class GcsStore(BucketStore):
    """Objects in a bucket of Google Cloud Storage. `timeout` is seconds to connect, and without a byte from it."""

    scheme = "gs"
    errors = _ERRORS

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        patience: Patience | None = None,
        transfers: Transfers | None = None,
        timeout: tuple[float, float] = (CONNECT_SECONDS, READ_SECONDS),
    ) -> None:
        super().__init__(bucket, prefix, patience=patience, transfers=transfers)
        self._once: dict[str, Any] = {"retry": None, "timeout": timeout}

    @functools.cached_property
    def _bucket(self) -> Any:
        """The bucket, which is there: a missing one looks like a missing object to all requests but a listing."""

        def look() -> Any:
            client = storage.Client(project=None)  # objects need none
            client._http.mount(client.api_endpoint, HTTPAdapter(pool_maxsize=CONNECTIONS))
            list(client.list_blobs(self.bucket, max_results=1, **self._once))
            return client.bucket(self.bucket)

        try:
            return self._call("list", self.prefix, look)
        except MissingObject:
            raise StoreError(
                f"store {self.url}: there is no bucket {self.bucket}: create it, or correct its name in the store's URL"
            ) from None

    def _may_pass(self, error: Exception) -> bool:
        """Overload, cut connections, time-outs, bytes torn on the way may pass."""
        if isinstance(error, (GoogleAPICallError, InvalidResponse)):
            return self._status(error) in _MAY_PASS_STATUS
        return isinstance(error, _ERRORS) and not isinstance(error, (DefaultCredentialsError, RefreshError))

    def _is_missing(self, error: Exception) -> bool:
        return self._status(error) == 404

    def _status(self, error: Exception) -> int:
        if isinstance(error, GoogleAPICallError):
            return int(error.code or 0)
        return int(error.response.status_code) if isinstance(error, InvalidResponse) else 0

    def _reason(self, error: Exception) -> str:
        line = " ".join(str(error).split())
        if isinstance(error, GoogleAuthError):
            return f"{line}: {_CREDENTIALS}"
        cure = _CURES.get(self._status(error), "try again later" if self._may_pass(error) else "")
        return f"{line}{': ' + cure if cure else ''}"

    def _put(self, key: str, data: bytes, mark: str | None = None, tag: str | None = None) -> None:
        condition = {} if tag is None else {"if_generation_match": 0 if tag == ABSENT else int(tag)}
        bucket = self._bucket

        def put() -> None:
            blob = bucket.blob(key)
            blob.metadata = {} if mark is None else {WRITER: mark}
            blob.upload_from_string(data, checksum="crc32c", **condition, **self._once)

        self._call("store", key, put)

    def _put_large(self, key: str, file: BinaryIO, size: int, sha256: str | None) -> None:
        found, crc32c = _checksums(file)
        check_sha256(Path(file.name), found, sha256)
        bucket = self._bucket

        def put() -> Any:
            file.seek(0)
            blob = bucket.blob(key)
            blob.crc32c = crc32c  # the server refuses other bytes
            blob.upload_from_file(file, size=size, checksum=None, **self._once)
            return blob

        if self._call("store", key, put).crc32c != crc32c:
            self._remove(key)
            raise StoreError(f"{file.name} changed while it was stored: what arrived has another checksum")

    def _whole(self, key: str) -> tuple[bytes, str]:
        bucket = self._bucket

        def get() -> tuple[bytes, str]:
            blob = bucket.blob(key)
            data: bytes = blob.download_as_bytes(checksum="crc32c", **self._once)
            return data, str(blob.generation)

        return self._call("read", key, get)

    def _first_part(self, key: str) -> tuple[bytes, int, str]:
        found = self._look(key)
        if found is None:
            raise MissingObject(f"no object {self._named(key)}")
        data = self._part(key, found.tag, found.size, 0) if found.size else b""
        return data, found.size, found.tag

    def _part(self, key: str, tag: str, size: int, start: int) -> bytes:
        length, bucket = self._part_length(size, start), self._bucket

        def get() -> bytes:
            blob = bucket.blob(key, generation=int(tag))
            data: bytes = blob.download_as_bytes(start=start, end=start + length - 1, checksum=None, **self._once)
            if len(data) != length:
                raise DataCorruption(None, f"{len(data):,} of {length:,} bytes came")
            return data

        try:
            return self._call("read", key, get)
        except MissingObject as error:  # that generation is gone
            raise Refused(str(error)) from error

    def _look(self, key: str) -> Look | None:
        bucket = self._bucket
        blob = self._call("look at", key, lambda: bucket.get_blob(key, **self._once))
        if blob is None:
            return None
        return Look(blob.size, str(blob.generation), blob.time_created.timestamp(), (blob.metadata or {}).get(WRITER))

    def _keys(self, prefix: str) -> Iterator[str]:
        client, token = self._bucket.client, None
        while True:

            def page(token: str | None = token) -> tuple[list[str], str | None]:
                found = client.list_blobs(self.bucket, prefix=prefix, page_token=token, **self._once)
                return [blob.name for blob in next(found.pages, ())], found.next_page_token

            names, token = self._call("list", prefix, page)
            yield from names
            if token is None:
                return

    def _remove(self, key: str) -> None:
        bucket = self._bucket
        try:
            self._call("delete", key, lambda: bucket.blob(key).delete(**self._once))
        except MissingObject:
            return


def _checksums(file: BinaryIO) -> tuple[str, str]:
    """The sha256 (hex) and the CRC32C (as Google writes it) of a file, read once."""
    sha256, crc32c = hashlib.sha256(), google_crc32c.Checksum()
    while piece := file.read(CHUNK_BYTES):
        sha256.update(piece)
        crc32c.update(piece)
    return sha256.hexdigest(), base64.b64encode(crc32c.digest()).decode("ascii")
