"""Servers that break every promise: what comes is an answer, a counted fault or a dropped task, and never a crash."""

import gzip
import json
import socketserver
import threading
from contextlib import contextmanager

import pytest

from nanocode.constitution import transport
from nanocode.constitution.accounts import Accounts, Budget
from nanocode.constitution.endpoint import ReplyError
from nanocode.constitution.faults import EndpointError, usage_of
from nanocode.constitution.ledger import Answer, Ledger
from nanocode.constitution.parsing import Unparsed, parse_critique, parse_texts
from tests.constitution.asker import GOOD, KEY, Asker, completion

HELLO = GOOD[2].encode()


def response(body, status="200 OK", *headers):
    head = [f"HTTP/1.1 {status}", "connection: close", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(head).encode() + body


@contextmanager
def raw_server(answer):
    """Sends the bytes that `answer` gives, whatever is asked, and closes; yields its base URL and what it was asked."""
    asked = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            head = b"".join(iter(self.rfile.readline, b"\r\n"))
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            asked.append(head + self.rfile.read(int(length.split(b":")[1])))
            self.wfile.write(answer())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1", asked
        finally:
            server.shutdown()


def with_field(**fields):
    return response(json.dumps(json.loads(HELLO) | fields).encode())


def with_message(**fields):
    return response(completion("hello", **fields).encode())


NO_ANSWERS = {
    "closes after the headers": b"HTTP/1.1 200 OK\r\ncontent-length: 400\r\n\r\n",
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "an endless header": b"HTTP/1.1 200 OK\r\nx: " + b"a" * 20_000 + b"\r\n\r\n",
    "chunks that are none": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nno\r\n",
    "no gzip though it says so": response(HELLO, "200 OK", "content-encoding: gzip"),
    "an encoding that was not asked for": response(HELLO, "200 OK", "content-encoding: br"),
    "no content": response(b"", "204 No Content"),
    "a login page": response(b"<html>sign in</html>", "200 OK", "content-type: text/html"),
    "a stream": response(b"data: " + HELLO + b"\n\ndata: [DONE]\n\n", "200 OK", "content-type: text/event-stream"),
    "JSON too deep to read": response(b'{"choices":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "a number too long to read": response(b'{"n":' + b"9" * 5_000 + b"}"),
    "choices that are no list": with_field(choices={"0": 1}),
    "an error as a string": response(b'{"error": {"code": "429"}}'),
    "an answer that broke off": response(completion("hel", "error").encode()),
}


@pytest.mark.parametrize("name", NO_ANSWERS)
def test_what_is_no_answer_is_a_fault_that_is_tried_again_and_never_kept(name, tmp_path):
    path = tmp_path / "l.jsonl"
    with raw_server(lambda: NO_ANSWERS[name]) as (address, asked):
        asker = Asker(path, address, max_attempts=2)
        with pytest.raises(EndpointError, match="gave no answer after 2 attempts: ") as error:
            asker.ask()
    assert error.value.transient
    assert "\n" not in str(error.value)
    assert len(asked) == 2
    with Ledger(path) as ledger:
        assert len(ledger) == 0


ODD_USAGE = [
    *(
        {"prompt_tokens": value, "completion_tokens": 2}
        for value in ("many", [1], -5, True, float("nan"), float("inf"))
    ),
    *({"prompt_tokens": 3, "completion_tokens": value} for value in ("many", [1], -1, float("inf"))),
    [3, 2],
    "5 tokens",
    7,
]


@pytest.mark.parametrize("usage", ODD_USAGE, ids=repr)
def test_a_bill_that_cannot_be_counts_as_the_worst_case_and_the_answer_is_kept(usage, tmp_path):
    assert usage_of({"usage": usage}) is None
    with raw_server(lambda: with_field(usage=usage)) as (address, asked):
        asker = Asker(tmp_path / "l.jsonl", address)
        first = asker.ask()
        assert asker.ask() == first
    assert len(asked) == 1
    assert (first.message.content, first.prompt_tokens, first.completion_tokens) == ("hello", 0, 0)
    with Ledger(tmp_path / "l.jsonl") as ledger:
        (answer,) = ledger.answers()
        assert not answer.fits(511)
        with Accounts(tmp_path / "l.accounts", ledger, {"critic": None}, Budget(tokens=10_000)) as accounts:
            assert accounts.spent.tokens > 512, "all that was reserved: its prompt and max_tokens"


HALF = "\ud800"
NO_MESSAGES = {
    "parts in place of a text": {"content": [{"type": "text", "text": "hi"}]},
    "half of a surrogate pair": {"content": HALF},
    "calls that are no list": {"tool_calls": {"0": 1}},
    "a number of calls": {"tool_calls": 5},
    "a call that is null": {"tool_calls": [None]},
    "arguments too deep to read": {"tool_calls": [{"function": {"name": "Read", "arguments": "[" * 100_000}}]},
    "a number too long to read": {
        "tool_calls": [{"function": {"name": "Read", "arguments": '{"limit": ' + "9" * 5_000 + "}"}}]
    },
    "a surrogate in an argument": {
        "tool_calls": [{"function": {"name": "Read", "arguments": json.dumps({"file_path": HALF})}}]
    },
    "a surrogate as a name": {"tool_calls": [{"function": {"name": HALF, "arguments": "{}"}}]},
}


@pytest.mark.parametrize("name", NO_MESSAGES)
def test_an_answer_that_is_no_message_drops_its_task_each_time_it_is_read_and_is_bought_once(name, tmp_path):
    said = json.loads(HELLO)
    said["choices"][0]["message"] |= NO_MESSAGES[name]
    with raw_server(lambda: response(json.dumps(said).encode())) as (address, asked):
        for _ in range(2):
            with pytest.raises(ReplyError, match="the reply"):
                Asker(tmp_path / "l.jsonl", address).ask()
    assert len(asked) == 1


@pytest.mark.parametrize("body", [HELLO, gzip.compress(HELLO)], ids=["plain", "gzip"])
def test_compressed_or_not_an_answer_is_an_answer(body, tmp_path):
    headers = [] if body == HELLO else ["content-encoding: gzip"]
    with raw_server(lambda: response(body, "200 OK", *headers)) as (address, _):
        assert Asker(tmp_path / "l.jsonl", address).ask().message.content == "hello"


@pytest.mark.parametrize("status", ["200 OK", "500 Oops"])
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_body_without_end_is_left_before_it_is_in_memory(status, packed, tmp_path, monkeypatch):
    monkeypatch.setattr(transport, "LARGEST_BODY_BYTES", 1 << 20)
    body = gzip.compress(b" " * (3 << 20)) if packed else b" " * (3 << 20)
    headers = ["content-encoding: gzip"] if packed else []
    with (
        raw_server(lambda: response(body, status, *headers)) as (address, _),
        pytest.raises(EndpointError, match="not taken in: an answer of more than 1 MB"),
    ):
        Asker(tmp_path / "l.jsonl", address, max_attempts=1).ask()


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
def test_neither_key_nor_question_follows_a_redirect(status, tmp_path):
    with raw_server(lambda: response(HELLO)) as (elsewhere, followed):
        there = f"location: {elsewhere}/chat/completions"
        with (
            raw_server(lambda: response(b"", status, there)) as (address, asked),
            pytest.raises(EndpointError, match=f"points elsewhere.*make it the base_url; {elsewhere}") as error,
        ):
            Asker(tmp_path / "l.jsonl", address, api_key_env="TEST_KEY").ask()
    assert len(asked) == 1
    assert followed == []
    assert not error.value.transient


def test_what_a_filter_withholds_drops_one_task_and_is_not_asked_for_for_ever(tmp_path):
    with (
        raw_server(lambda: response(completion("hel", "content_filter").encode())) as (address, asked),
        pytest.raises(EndpointError, match="after 1 attempt: withheld") as error,
    ):
        Asker(tmp_path / "l.jsonl", address).ask()
    assert len(asked) == 1
    assert (error.value.transient, error.value.fatal) == (False, False)


@pytest.mark.parametrize("value", ["-5", "nan", "Wed, 21 Oct 2065 07:28:00 GMT", "soon", ""])
def test_a_retry_after_that_makes_no_sense_is_no_pause(value, tmp_path):
    answers = iter([response(b"{}", "429 Slow", f"retry-after: {value}"), response(HELLO)])
    with raw_server(lambda: next(answers)) as (address, _):
        asker = Asker(tmp_path / "l.jsonl", address)
        asker.ask()
    assert sum(asker.pauses) <= 1.0


@pytest.mark.parametrize("value", ["1000000000", "inf", "1e300"])
def test_a_retry_after_of_years_is_cut_to_ten_minutes(value, tmp_path):
    answers = iter([response(b"{}", "429 Slow", f"retry-after: {value}"), response(HELLO)])
    with raw_server(lambda: next(answers)) as (address, _):
        asker = Asker(tmp_path / "l.jsonl", address)
        asker.ask()
    assert 600 <= sum(asker.pauses) <= 601


def spellings(key):
    """The key as JSON may write it."""
    yield key
    yield "".join(f"\\u{ord(character):04x}" for character in key)
    yield "".join(f"\\u{ord(character):04X}" if place % 2 else character for place, character in enumerate(key))


@pytest.mark.parametrize("spelled", spellings(KEY))
@pytest.mark.parametrize("status", ["200 OK", "400 Bad"])
def test_a_key_that_is_echoed_is_masked_however_it_is_spelled(spelled, status, tmp_path):
    body = HELLO.replace(b"hello", f"your key is {spelled}".encode())
    with raw_server(lambda: response(body, status)) as (address, _):
        try:
            said = Asker(tmp_path / "l.jsonl", address, api_key_env="TEST_KEY").ask().message.content
        except EndpointError as error:
            said = str(error)
    assert "your key is ***" in said
    assert spelled.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_a_slash_may_be_escaped_and_a_key_is_no_pattern():
    masked = transport.Mask("a/b.c+")
    assert masked(r"a/b.c+ a\/b.c+ a/bxc+") == "*** *** a/bxc+"
    assert transport.Mask("")("as it is") == "as it is"


def test_half_a_surrogate_pair_or_endless_depth_in_a_judge_s_words_is_unread():
    critique = json.dumps({"score": 1, "violations": ["a"], "critique": HALF})
    for text in (critique, "[" * 100_000, '{"score": ' + "[" * 100_000):
        with pytest.raises(Unparsed):
            parse_critique(text, ["a"])
    with pytest.raises(Unparsed):
        parse_texts(json.dumps({"texts": [HALF]}), 1)


def test_an_answer_on_file_with_an_odd_bill_is_read():
    assert Answer("k", json.dumps(json.loads(HELLO) | {"usage": [1]}), "q", 10).fits(10)


@pytest.mark.parametrize(
    "address",
    [
        "localhost:8000/v1",
        "ftp://host/v1",
        "http://",
        "",
        "http://[::1/v1",
        "http://127.0.0.1:99999/v1",
        "https://h:x/",
    ],
)
def test_what_is_no_address_is_said_before_anything_is_tried(address, tmp_path):
    with pytest.raises(EndpointError, match=r"is no address: give http://HOST") as error:
        Asker(tmp_path / "l.jsonl", address).ask()
    assert not error.value.transient


def test_a_password_in_an_address_is_refused_and_not_repeated(tmp_path):
    with pytest.raises(EndpointError, match="no user and password: name the key's variable in api_key_env") as error:
        Asker(tmp_path / "l.jsonl", "http://me:hidden@127.0.0.1:9/v1").ask()
    assert "hidden" not in str(error.value)


@pytest.mark.parametrize(
    "key", ["sk-hidden\n", " sk-hidden", "sk-\nhidden", "sk-\x00hidden", "sk-hiddén", "\t"], ids=ascii
)
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(key):
    with pytest.raises(EndpointError, match=r"environment variable MY_KEY holds what no key does") as error:
        transport.key_in({"MY_KEY": key}, "MY_KEY", "http://127.0.0.1:9/v1")
    assert "hidd" not in str(error.value)
    assert not error.value.transient
