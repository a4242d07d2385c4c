"""Who may speak to the server, and what a browser is told to keep out of."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest
from scripted_server import MODEL, Scripted, make_app
from starlette.testclient import TestClient

from nanocode.conversation import Message
from nanocode.serving.gate import Access, UnsafeAddress
from nanocode.serving.pages import PAGE, chat_page
from nanocode.serving.server import MAX_BODY_BYTES

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
PATH = "/v1/chat/completions"


@pytest.fixture
def client(tokenizer):
    """`client(host, token)`."""

    def make(host="127.0.0.1", token=None, base_url="http://127.0.0.1:8000"):
        scripted = Scripted(tokenizer, lambda conversation: Message("assistant", "ok"))
        return TestClient(make_app(scripted, Access.at(host, token)), base_url=base_url)

    return make


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.7", "::", "example.org", "127.0.0.1.example.org"])
def test_any_address_but_loopback_needs_a_token(host):
    for token in (None, ""):
        with pytest.raises(UnsafeAddress, match=r"can be reached from elsewhere.*--token-env"):
            Access.at(host, token)
    assert Access.at(host, "secret") == Access(None, "secret")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_loopback_needs_none(host):
    assert host in (Access.at(host, None).hosts or ())


@pytest.mark.parametrize("name", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[::2]:8000"])
@pytest.mark.parametrize("path", ["/", "/v1/models", "/healthz", PATH])
def test_another_name_for_the_address_is_refused(client, name, path):
    with client() as local:
        reply = local.get(path, headers={"Host": name})
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "host_not_allowed")


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000", "[::1]"])
def test_its_own_names_are_accepted(client, name):
    with client() as local:
        assert local.get("/healthz", headers={"Host": name}).json()["status"] == "ok"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:8001", "https://localhost"])
def test_pages_of_others_make_it_do_nothing(client, origin):
    with client() as local:
        reply = local.post(PATH, json=BODY, headers={"Origin": origin})
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "origin_not_allowed")
        assert local.post(PATH, json=BODY, headers={"Origin": "http://127.0.0.1:8000"}).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_body_that_a_form_could_send_is_refused(client, kind):
    with client() as local:
        reply = local.post(PATH, content=b"{}", headers={"Content-Type": kind})
    assert reply.status_code == 415


def test_the_token_opens_everything_but_the_page_and_the_health(client):
    with client("0.0.0.0", "secret", base_url="http://models.example") as local:
        for wrong in (None, "Bearer wrong", "Bearer", "Basic secret", "secret", "Bearer sécret"):
            headers = {} if wrong is None else {"Authorization": wrong.encode("latin-1")}
            reply = local.post(PATH, json=BODY, headers=headers)
            assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
            assert reply.headers["www-authenticate"] == "Bearer" and "secret" not in reply.text
            assert local.get("/v1/models", headers=headers).status_code == 401
        assert local.post(PATH, json=BODY, headers={"Authorization": "Bearer secret"}).status_code == 200
        assert local.get("/").status_code == local.get("/healthz").status_code == 200


def test_a_body_without_end_is_cut_off(client):
    with client() as local:
        huge = b" " * (MAX_BODY_BYTES + 1)
        reply = local.post(PATH, content=huge, headers={"Content-Type": "application/json"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v2", 404), ("GET", PATH, 405), ("POST", "/", 405)])
def test_what_is_not_there_is_said_in_the_same_shape(client, method, path, status):
    with client() as local:
        reply = local.request(method, path, json={} if method == "POST" else None)
    assert reply.status_code == status
    assert reply.json()["error"]["message"] == f"{method} {path} is not served here"


def test_the_page_runs_its_own_script_and_nothing_else(client):
    with client() as local:
        reply = local.get("/")
    policy = dict(part.split(" ", 1) for part in reply.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'" and policy["connect-src"] == "'self'"
    (script,) = re.findall("<script>(.*?)</script>", reply.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy["script-src"] == f"'sha256-{digest}'"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in reply.headers


def test_the_page_loads_nothing_and_puts_text_in_as_text():
    html = chat_page().html
    assert html == PAGE.read_text(encoding="utf-8")
    assert re.findall(r"(?:src|href)\s*=\s*\"(?!data:,)[^\"]*\"|https?://|@import|url\(", html) == []
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|\son\w+=|\sstyle=", html) == []
