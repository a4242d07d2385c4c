"""What cannot work is said in one line, with the cure: credentials, buckets, addresses, servers without conditions."""

from __future__ import annotations

import datetime
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import botocore.auth
import pytest

from artifacts.gcs_store import GcsStore
from artifacts.retry import Patience
from artifacts.s3_store import S3Store
from artifacts.store import MARKER, StoreError, StoreSettings, WrongStore, check_schema, open_store
from tests.servers import Server, free_port

AT_ONCE = Patience(attempts=2, sleep=lambda seconds: None)


def refused(ask: object, match: str) -> None:
    assert callable(ask)
    with pytest.raises(StoreError, match=match) as caught:
        ask()
    assert "\n" not in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_a_wrong_secret(s3: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    refused(
        lambda: open_store(f"s3://{s3.bucket}/x"), r"SignatureDoesNotMatch .*check AWS_ACCESS_KEY_ID and AWS_SECRET"
    )


def test_an_unknown_key(s3: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    refused(lambda: open_store(f"s3://{s3.bucket}/x"), r"InvalidAccessKeyId .*check AWS_ACCESS_KEY_ID")


def test_no_credentials(s3: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    refused(lambda: open_store(f"s3://{s3.bucket}/x"), r"credentials.*set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")


def test_a_missing_bucket(s3: Server, gcs: Server) -> None:
    refused(lambda: open_store("s3://no-such-bucket/x"), r"NoSuchBucket .*create the bucket, or correct its name")
    refused(lambda: open_store("gs://no-such-bucket/x"), r"there is no bucket no-such-bucket: create it, or correct")


def test_nothing_at_the_address(s3: Server, gcs: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
    refused(
        lambda: check_schema(S3Store(s3.bucket, "x", patience=AT_ONCE)),
        f"nothing answers at {address}: start the server, or correct AWS_ENDPOINT_URL",
    )
    refused(lambda: check_schema(GcsStore(gcs.bucket, "x", patience=AT_ONCE)), "Connection refused.*try again later")


def test_https_where_http_is_spoken(s3: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.address.replace("http:", "https:"))
    refused(lambda: check_schema(S3Store(s3.bucket, "x", patience=AT_ONCE)), "SSL.*check http or https in AWS_ENDPOINT")


def test_a_profile_that_is_not_there(s3: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    refused(lambda: open_store(f"s3://{s3.bucket}/x"), r"profile \(nobody\) could not be found: check the AWS_")


def test_a_clock_an_hour_ahead(s3: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """SeaweedFS, as S3, refuses requests whose signature is of another time."""
    ahead = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda remove_tzinfo=True: ahead.replace(tzinfo=None))
    refused(lambda: open_store(f"s3://{s3.bucket}/x"), r"RequestTimeTooSkewed .*clock is wrong: set it")


@pytest.mark.parametrize(
    "url",
    ["s3:", "s3://", "s3:bucket", "s3:///x", "gs://", "s3://bucket/../x", "s3://bucket/a b", "s3://ab/x", "s3://b@d/x"],
)
def test_urls_that_name_no_place(url: str) -> None:
    refused(lambda: open_store(url), "names no bucket: write|object name|bucket names have")


class _Careless(BaseHTTPRequestHandler):
    """A server of S3's protocol, as far as the store needs it, that does not look at conditions."""

    protocol_version = "HTTP/1.1"
    objects: dict[str, tuple[bytes, str]]
    rejects: int | None

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.rejects and ("If-None-Match" in self.headers or "If-Match" in self.headers):
            self._answer(self.rejects, b"<Error><Code>NotImplemented</Code><Message>no</Message></Error>")
            return
        self.objects[self.path] = (body, self.headers.get("x-amz-meta-nanocode-write", ""))
        self._answer(200, b"", ETag=f'"{hashlib.md5(body).hexdigest()}"')

    def do_GET(self) -> None:
        if self.path not in self.objects:
            self._answer(404, b"<Error><Code>NoSuchKey</Code><Message>no</Message></Error>")
            return
        body, mark = self.objects[self.path]
        modified = "Sun, 29 Nov 2026 20:00:00 GMT"
        tag = f'"{hashlib.md5(body).hexdigest()}"'
        self._answer(200, body, **{"ETag": tag, "Last-Modified": modified, "x-amz-meta-nanocode-write": mark})

    do_HEAD = do_GET

    def do_DELETE(self) -> None:
        self.objects.pop(self.path, None)
        self._answer(204, b"")

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response_only(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture(params=[None, 501, 400])
def careless(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, tuple[bytes, str]]]:
    """The objects of a running server without conditional writes: it overlooks conditions, or refuses them."""
    objects: dict[str, tuple[bytes, str]] = {}
    handler = type("Handler", (_Careless,), {"objects": objects, "rejects": request.param})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    yield objects
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_server_without_conditional_writes_is_refused_before_anything_is_written(careless: dict) -> None:
    store = open_store("s3://bucket/x")
    for _ in range(2):
        refused(lambda: store.put_bytes("a", b""), r"no conditional writes .*unsafe_leases = true in \[store\]")
        refused(lambda: store.put_if_absent("a", b""), "no conditional writes")
    assert careless == {}


def test_a_server_without_conditional_writes_can_be_used_on_ones_own_risk(careless: dict) -> None:
    warnings: list[str] = []
    store = open_store("s3://bucket/x", settings=StoreSettings(unsafe_leases=True), warn=warnings.append)
    assert [store.put_if_absent("a", b"1"), store.put_if_absent("a", b"2")] == [True, False]
    data, tag = store.read_tagged("a")
    assert data == b"1"
    assert [store.put_if_tag("a", b"3", tag), store.put_if_tag("a", b"4", tag)] == [True, False]
    assert (store.read("a"), store.read(MARKER)) == (b"3", b'{"schema": 1}')
    assert warnings == [f"store {store.url} has no conditional writes: two runs at once may spoil each other"]
    assert set(careless) == {"/bucket/x/a", "/bucket/x/store.json"}


def test_settings_come_from_the_config_and_the_environment(tmp_path: Path) -> None:
    plain = StoreSettings.chosen({}, tmp_path, cache_bytes=5)
    assert plain == StoreSettings(tmp_path / ".nanocode" / "cache", 5, False)
    environment = {"NANOCODE_CACHE": "/elsewhere", "NANOCODE_UNSAFE_LEASES": "1"}
    assert StoreSettings.chosen(environment, tmp_path) == StoreSettings(Path("/elsewhere"), 20_000_000_000, True)
    assert not StoreSettings.chosen({"NANOCODE_UNSAFE_LEASES": "0"}, tmp_path).unsafe_leases


def test_gcs_without_its_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "google.cloud.storage", None)
    monkeypatch.setitem(sys.modules, "google.cloud", None)
    monkeypatch.delitem(sys.modules, "artifacts.gcs_store", raising=False)
    with pytest.raises(WrongStore, match=r"pip install 'nanocode\[gcs\]'"):
        open_store("gs://bucket/x")
