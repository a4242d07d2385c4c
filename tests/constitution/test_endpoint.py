import socket
import threading
import time

import pytest

from nanocode.constitution.accounts import Accounts, Budget, reused_in
from nanocode.constitution.earlier import EarlierAnswers, Source
from nanocode.constitution.endpoint import ReplyError
from nanocode.constitution.faults import EndpointError
from nanocode.constitution.ledger import Ledger
from nanocode.conversation import ToolCall
from tests.constitution.asker import GOOD, KEY, MESSAGES, SCHEMA, Asker, completion


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def test_an_answer_comes_back_with_its_usage_and_is_asked_for_once(fake_endpoint, path):
    with fake_endpoint(lambda number, body: GOOD) as fake:
        asker = Asker(path, fake.base_url)
        first, again = asker.ask(), asker.ask()
    assert first == again
    assert fake.headers[0]["idempotency-key"] == first.key
    assert (first.message.content, first.model) == ("hello", "fake-1")
    assert (first.prompt_tokens, first.completion_tokens) == (3, 2)
    assert len(fake.seen) == 1
    assert fake.seen[0] == {
        "model": "fake",
        "messages": MESSAGES,
        "temperature": 0.7,
        "max_tokens": 512,
        "seed": 1,
    }


def test_a_tool_call_comes_back_as_one(fake_endpoint, path):
    call = {"id": "x", "type": "function", "function": {"name": "Read", "arguments": '{"file_path": "a", "limit": 3}'}}
    with fake_endpoint(lambda number, body: (200, {}, completion(None, "tool_calls", tool_calls=[call]))) as fake:
        answer = Asker(path, fake.base_url).ask(tools=[{"type": "function"}])
    assert answer.message.tool_call == ToolCall("Read", {"file_path": "a", "limit": "3"})
    assert fake.seen[0]["tools"] == [{"type": "function"}]
    assert fake.seen[0]["parallel_tool_calls"] is False


def test_two_calls_in_one_turn_are_no_message_but_are_kept(fake_endpoint, path):
    call = {"id": "x", "type": "function", "function": {"name": "Read", "arguments": "{}"}}
    with fake_endpoint(lambda number, body: (200, {}, completion(None, tool_calls=[call, call]))) as fake:
        for _ in range(2):
            with pytest.raises(ReplyError, match="2 tool calls in one turn"):
                Asker(path, fake.base_url).ask()
    assert len(fake.seen) == 1


@pytest.mark.parametrize(("mode", "sent"), [("json_schema", True), ("json_object", True), ("off", False)])
def test_json_is_asked_for_in_the_configured_way(mode, sent, fake_endpoint, path):
    with fake_endpoint(lambda number, body: GOOD) as fake:
        Asker(path, fake.base_url, structured_output=mode).ask(schema=SCHEMA)
    assert ("response_format" in fake.seen[0]) == sent
    assert not sent or fake.seen[0]["response_format"]["type"] == mode


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ((500, {}, "{}"), "status 500"),
        ((503, {}, "busy"), "status 503: busy"),
        ((408, {}, "{}"), "status 408"),
        ((409, {}, "{}"), "status 409"),
        ((425, {}, "{}"), "status 425"),
        ((429, {}, "{}"), "status 429"),
        ((200, {}, '{"error": {"code": 429, "message": "slow down"}}'), "error inside .code 429."),
        ((200, {}, '{"error": {"code": "overloaded"}, "choices": []}'), "error inside"),
        ((200, {}, completion(None)), "content null"),
        ((200, {}, '{"choices": []}'), "without choices"),
        ((200, {}, '{"choices": [{"message": null}]}'), "without choices"),
        ((200, {}, '{"choices": [{"mess'), "not JSON"),
        ((200, {}, "[]"), "not an object"),
        ((200, {}, completion('{"score": 1.1.1.', "length")), "cut off by max_tokens"),
    ],
)
def test_a_passing_fault_is_tried_again_and_a_lasting_one_ends_after_max_attempts(reply, said, fake_endpoint, path):
    with fake_endpoint(lambda number, body: reply if number < 3 else GOOD) as fake:
        assert Asker(path, fake.base_url).ask(schema=SCHEMA).message.content == "hello"
        assert len(fake.seen) == 3
    with fake_endpoint(lambda number, body: reply) as fake:
        asker = Asker(path.with_name("other"), fake.base_url)
        with pytest.raises(
            EndpointError, match=rf"{fake.base_url} \(fake\) gave no answer after 3 attempts: .*{said}"
        ) as error:
            asker.ask(schema=SCHEMA)
        assert len(fake.seen) == 3
    assert error.value.transient
    assert "\n" not in str(error.value)
    with Ledger(path.with_name("other")) as ledger:
        assert len(ledger) == 0


def test_a_text_that_reached_its_limit_is_still_a_text(fake_endpoint, path):
    with fake_endpoint(lambda number, body: (200, {}, completion("and so", "length"))) as fake:
        assert Asker(path, fake.base_url).ask().message.content == "and so"


@pytest.mark.parametrize("reply", [(status, {}, "{}") for status in (400, 401, 403, 404, 422)])
def test_another_4xx_is_never_tried_again(reply, fake_endpoint, path):
    with fake_endpoint(lambda number, body: reply) as fake:
        with pytest.raises(EndpointError, match=f"after 1 attempt: status {reply[0]}") as error:
            Asker(path, fake.base_url).ask()
        assert len(fake.seen) == 1
    assert not error.value.transient


def test_a_refusal_inside_a_200_is_never_tried_again(fake_endpoint, path):
    with fake_endpoint(lambda number, body: (200, {}, '{"error": {"code": 400}}')) as fake:
        with pytest.raises(EndpointError, match="error inside"):
            Asker(path, fake.base_url).ask()
        assert len(fake.seen) == 1


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        ({"Retry-After": "7"}, 7, 7.5),
        ({"Retry-After": "Thu, 01 Jan 2026 00:00:09 GMT", "Date": "Thu, 01 Jan 2026 00:00:00 GMT"}, 9, 9.5),
        ({"Retry-After": "soon"}, 0.25, 0.5),
        ({}, 0.25, 0.5),
    ],
)
def test_no_request_before_retry_after(headers, least, most, fake_endpoint, path):
    with fake_endpoint(lambda number, body: (429, headers, "{}") if number == 1 else GOOD) as fake:
        asker = Asker(path, fake.base_url)
        asker.ask()
    assert least <= sum(asker.pauses) <= most


def test_pauses_grow_and_are_jittered(fake_endpoint, path):
    with fake_endpoint(lambda number, body: (500, {}, "{}")) as fake:
        asker = Asker(path, fake.base_url, max_attempts=10)
        with pytest.raises(EndpointError):
            asker.ask()
    bounds = [min(30.0, 0.5 * 2**index) for index in range(9)]
    assert len(asker.pauses) == 9
    assert all(bound / 2 <= pause <= bound for pause, bound in zip(asker.pauses, bounds, strict=True))
    assert len(set(asker.pauses[-2:])) == 2


def test_a_hanging_server_is_left_after_the_timeout(fake_endpoint, path):
    with fake_endpoint(lambda number, body: fake.hang()) as fake:
        asker = Asker(path, fake.base_url, timeout_seconds=0.5, max_attempts=2)
        with pytest.raises(EndpointError, match=r"after 2 attempts: no answer within 0\.5 seconds") as error:
            asker.ask()
        assert len(fake.seen) == 2
    assert error.value.transient


def test_nobody_listening_is_said_so(path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        asker = Asker(path, f"http://127.0.0.1:{unused.getsockname()[1]}/v1", max_attempts=2)
        with pytest.raises(EndpointError, match="after 2 attempts: no connection") as error:
            asker.ask()
    assert error.value.transient


def test_one_poisoned_request_leaves_the_others_their_answers(fake_endpoint, path):
    def answer(number, body):
        return (400, {}, "{}") if number == 7 else GOOD

    with fake_endpoint(answer) as fake:
        answers = Asker(path, fake.base_url).ask(count=200)
        lost = [answer for answer in answers if isinstance(answer, Exception)]
        assert len(lost) == 1, "199 are kept"
        assert isinstance(lost[0], EndpointError)
        asked_before = len(fake.seen)
        Asker(path, fake.base_url).ask(count=200)
        assert len(fake.seen) == asked_before + 1


def test_retry_after_holds_back_the_requests_of_everybody(fake_endpoint, path):
    def answer(number, body):
        return (429, {"Retry-After": "7"}, "{}") if number == 1 else GOOD

    with fake_endpoint(answer) as fake:
        asker = Asker(path, fake.base_url)
        assert all(not isinstance(answer, Exception) for answer in asker.ask(count=5, concurrency=1))
        assert len(fake.seen) == 6
    assert 7 <= sum(asker.pauses) <= 8


def test_a_server_that_drips_is_left_after_the_timeout(fake_endpoint, path):
    def drip(handler):
        handler.rfile.read(int(handler.headers["content-length"]))
        handler.send_response_only(200)
        handler.send_header("content-length", "1000")
        handler.end_headers()
        while not fake.closing.wait(0.02):
            handler.wfile.write(b" ")

    with fake_endpoint(lambda number, body: GOOD) as fake:
        fake.handle = drip
        with pytest.raises(EndpointError, match=r"no answer within 0\.2 seconds"):
            Asker(path, fake.base_url, timeout_seconds=0.2, max_attempts=1).ask()


@pytest.mark.parametrize(("status", "others_are_tried"), [(401, False), (402, False), (403, True), (404, True)])
def test_a_refusal_of_key_or_model_is_final_and_one_of_a_single_request_is_not(
    status, others_are_tried, fake_endpoint, path
):
    with fake_endpoint(lambda number, body: (status, {}, "{}")) as fake:
        answers = Asker(path, fake.base_url).ask(count=5, concurrency=1)
        assert len(fake.seen) == 1
    assert all(answer.fatal for answer in answers)
    with fake_endpoint(lambda number, body: (status, {}, "{}") if number == 2 else GOOD) as fake:
        answers = Asker(path.with_name("other"), fake.base_url).ask(count=5, concurrency=1)
        assert len(fake.seen) == (5 if others_are_tried else 2)
        refusals = [answer for answer in answers if isinstance(answer, Exception)]
        assert [answer.fatal for answer in refusals] == ([False] if others_are_tried else [True] * 4)


def test_no_more_requests_in_flight_than_allowed(fake_endpoint, path):
    in_flight, most, lock = 0, 0, threading.Lock()

    def answer(number, body):
        nonlocal in_flight, most
        with lock:
            in_flight += 1
            most = max(most, in_flight)
        time.sleep(0.01)
        with lock:
            in_flight -= 1
        return GOOD

    with fake_endpoint(answer) as fake:
        Asker(path, fake.base_url).ask(count=12, concurrency=3)
    assert most == 3


def test_the_key_is_sent_and_never_shown(fake_endpoint, path):
    with fake_endpoint(lambda number, body: (401, {}, f'{{"error": "wrong key {KEY}"}}')) as fake:
        with pytest.raises(EndpointError) as error:
            Asker(path, fake.base_url, api_key_env="TEST_KEY").ask()
        assert fake.headers[0]["authorization"] == f"Bearer {KEY}"
    assert KEY not in str(error.value)
    assert "***" in str(error.value)
    assert KEY.encode() not in path.read_bytes()


def test_a_missing_key_is_named_before_anything_is_sent(path):
    with pytest.raises(EndpointError, match="environment variable NO_SUCH_KEY is not set"):
        Asker(path, "http://127.0.0.1:9/v1", api_key_env="NO_SUCH_KEY").ask()


def test_a_raised_bound_asks_again_only_for_what_was_cut(fake_endpoint, path):
    def reply(number, body):
        cut = body["max_tokens"] == 4 and body["messages"][-1]["content"] == "long"
        return 200, {}, completion("half" if cut else "whole", "length" if cut else "stop")

    short, long = [{"role": "user", "content": "short"}], [{"role": "user", "content": "long"}]
    with fake_endpoint(reply) as fake:
        small = Asker(path, fake.base_url, max_tokens=4)
        first, cut = small.ask(messages=short), small.ask(messages=long)
        large = Asker(path, fake.base_url, max_tokens=400)
        assert large.ask(messages=short) == first, "the answer is known by the request that it was given to"
        again = large.ask(messages=long)
        assert (cut.message.content, again.message.content) == ("half", "whole")
        assert small.ask(messages=long) == cut, "and the cut one stays the answer to its own request"
        assert large.ask(messages=long) == again
    assert [(seen["max_tokens"], seen["messages"][-1]["content"]) for seen in fake.seen] == [
        (4, "short"), (4, "long"), (400, "long"),
    ]  # fmt: skip
    assert fake.headers[1]["idempotency-key"] != fake.headers[2]["idempotency-key"], "lest the cut answer come again"


@pytest.mark.parametrize("counted", [True, False])
def test_an_answer_of_an_earlier_run_is_taken_over_and_stands_on_one_bill(counted, fake_endpoint, path):
    with fake_endpoint(lambda number, body: GOOD) as fake:
        bought = Asker(path.with_name("earlier.jsonl"), fake.base_url, max_tokens=40).ask()
        with EarlierAnswers([Source(path.with_name("earlier.jsonl"), counted)]) as earlier:
            asker = Asker(path, fake.base_url, max_tokens=60, earlier=earlier)
            assert asker.ask() == bought == asker.ask()
    assert len(fake.seen) == 1
    assert list(reused_in(path.with_suffix(".accounts"))) == ([bought.key] if counted else [])
    budget = Budget(tokens=100)
    with Ledger(path) as ledger, Accounts(path.with_suffix(".accounts"), ledger, {"critic": None}, budget) as accounts:
        assert accounts.spent.tokens == (0 if counted else 5)
