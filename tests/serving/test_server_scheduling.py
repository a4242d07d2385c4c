"""Whose turn it is at the engine: batches, live turns, a queue with an end, and clients that leave."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import httpx2 as httpx
import openai
import pytest
from asgi_server import listening
from scripted_server import MODEL, Sampled, Scripted, make_app

from nanocode.conversation import Message
from nanocode.inference.sampling import Sampling
from nanocode.serving.gate import Access
from nanocode.serving.scheduler import Closed, QueueFull, Scheduler, Ticket, Work
from nanocode.serving.server import ChatServer, Served
from nanocode.tokenizer import Tokenizer

GREEDY = Sampling()
WARM = Sampling(temperature=1.0)


class Held:
    """A decoder whose live tokens and batches each need a permit; `log` has who got what, in order."""

    def __init__(self) -> None:
        self.log: list[object] = []
        self.permits = threading.Semaphore(0)
        self.prompts: list[tuple[int, ...]] = []

    def stream(self, work: Work) -> Iterator[Sampled]:
        self.prompts.append(work.prompt)
        for _ in range(work.max_new_tokens):
            self.permits.acquire()
            self.log.append(work.prompt[0])
            yield Sampled(9)

    def batch(self, work):
        self.permits.acquire()
        self.log.append([each.prompt[0] for each in work])
        return [[Sampled(9)] * each.max_new_tokens for each in work]


BODY = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}


def held_up(tokenizer: Tokenizer) -> tuple[Scripted, threading.Event]:
    """A model that says nothing before the event is set."""
    going = threading.Event()

    def reply(conversation: object) -> Message:
        going.wait(10)
        return Message("assistant", "ok")

    return Scripted(tokenizer, reply), going


@pytest.fixture
def held() -> Held:
    return Held()


@pytest.fixture
def scheduler(held: Held) -> Iterator[Callable[..., Scheduler]]:
    """`scheduler(max_waiting, live_seats)`."""
    made = []

    def make(max_waiting: int = 8, live_seats: int = 2) -> Scheduler:
        made.append(Scheduler(lambda: held, held.batch, max_waiting=max_waiting, live_seats=live_seats))
        return made[-1]

    yield make
    held.permits.release(1_000)
    for each in made:
        each.close()


def ticket(name: int, live: bool = False, tokens: int = 2, sampling: Sampling = GREEDY, heard=None) -> Ticket:
    done = heard if heard is not None else []
    return Ticket(Work((name, 1, 2), tokens, sampling, 0, live), done.append)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_what_waits_with_the_same_sampling_shares_a_batch_and_nothing_waits_for_what_came_later(scheduler, held):
    queue = scheduler()
    queue.submit([ticket(1)])
    wait_until(lambda: queue.waiting == 0)
    queue.submit([ticket(2), ticket(3, sampling=WARM), ticket(4), ticket(5, sampling=WARM)])
    held.permits.release(3)
    wait_until(lambda: len(held.log) == 3)
    assert held.log == [[1], [2, 4], [3, 5]]


def test_live_conversations_take_turns_and_a_batch_waits_for_those_that_came_before_it(scheduler, held):
    queue = scheduler()
    queue.submit([ticket(1, live=True, tokens=3), ticket(2, live=True, tokens=3), ticket(7)])
    queue.submit([ticket(3, live=True, tokens=1)])
    held.permits.release(8)
    wait_until(lambda: len(held.log) == 8)
    assert held.log[:6] == [1, 2, 1, 2, 1, 2]
    # A seat was free only now; the batch is older than the conversation that takes it.
    assert held.log[6:] == [[7], 3]


def test_more_than_may_wait_is_refused_whole(scheduler, held):
    queue = scheduler(max_waiting=2)
    queue.submit([ticket(1)])
    wait_until(lambda: queue.waiting == 0)
    queue.submit([ticket(2)])
    with pytest.raises(QueueFull, match="1 replies are waiting already, at most 2 may"):
        queue.submit([ticket(3), ticket(4)])
    queue.submit([ticket(5)])
    assert queue.waiting == 2


def test_what_is_cancelled_leaves_the_queue_and_its_seat(scheduler, held):
    queue = scheduler(max_waiting=1, live_seats=1)
    heard = []
    first, second = ticket(1, live=True, tokens=100, heard=heard), ticket(2, live=True, tokens=1)
    queue.submit([first])
    held.permits.release(2)
    wait_until(lambda: len(heard) == 2)
    queue.submit([second])
    second.cancel()
    third = ticket(3, live=True, tokens=1)
    queue.submit([third])
    first.cancel()
    held.permits.release(2)
    wait_until(lambda: 3 in held.log)
    assert 2 not in held.log and len(held.log) <= 4


def test_a_conversation_returns_to_the_decoder_that_knows_it():
    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def stream(self, work):
            served.append((self.name, work.prompt[0]))
            yield Sampled(9)

    served: list[tuple[str, int]] = []
    names = iter("ab")
    queue = Scheduler(lambda: Named(next(names)), lambda work: [], max_waiting=8, live_seats=2)
    for prompt in ((1, 5), (2, 5), (2, 5, 9, 6), (1, 5, 9, 6)):
        heard: list[object] = []
        queue.submit([Ticket(Work(prompt, 1, GREEDY, 0, live=True), heard.append)])
        wait_until(lambda heard=heard: None in heard)
    queue.close()
    assert set(served) == {("a", 1), ("b", 2)} and len(served) == 4


def test_an_end_is_told_to_those_who_wait(scheduler, held):
    queue = scheduler()
    heard: list[object] = []
    queue.submit([ticket(1, live=True), ticket(2, heard=heard)])
    wait_until(lambda: len(held.prompts) == 1)
    ending = threading.Thread(target=queue.close)
    ending.start()
    held.permits.release(1)
    ending.join(10)
    assert isinstance(heard[0], Closed)
    with pytest.raises(Closed):
        queue.submit([ticket(3)])


def test_a_full_queue_is_a_429_with_a_time_to_come_back(tokenizer):
    scripted, going = held_up(tokenizer)
    with listening(make_app(scripted, max_waiting=1)) as address:
        replies: list[httpx.Response] = []

        def ask() -> None:
            replies.append(httpx.post(f"{address}/v1/chat/completions", json=BODY, timeout=20))

        asking = [threading.Thread(target=ask) for _ in range(2)]
        asking[0].start()
        wait_until(lambda: len(scripted.batches) == 1)
        asking[1].start()
        wait_until(lambda: httpx.get(f"{address}/healthz").json()["waiting"] == 1)
        ask()
        assert (replies[0].status_code, replies[0].headers["retry-after"]) == (429, "1")
        assert replies[0].json()["error"]["code"] == "queue_full"
        going.set()
        for thread in asking:
            thread.join(10)
        assert [reply.status_code for reply in replies] == [429, 200, 200]


def test_a_client_that_leaves_in_the_middle_frees_its_seat(tokenizer):
    step = threading.Event()
    scripted = Scripted(
        tokenizer, lambda conversation: Message("assistant", "word " * 80), between=lambda: step.wait(10)
    )
    with listening(make_app(scripted, seats=1)) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        messages = [{"role": "user", "content": "x"}]
        first = client.chat.completions.create(model=MODEL, messages=messages, stream=True)
        next(iter(first))
        first.response.close()
        # Only now do tokens come, and slowly: the whole reply would take longer than the test allows.
        scripted._between = lambda: time.sleep(0.05)
        step.set()
        wait_until(lambda: scripted.closed == 1)
        assert client.chat.completions.create(model=MODEL, messages=messages, max_tokens=2).usage.completion_tokens == 2


def test_a_client_that_leaves_while_it_waits_leaves_the_queue(tokenizer):
    scripted, going = held_up(tokenizer)
    with listening(make_app(scripted, max_waiting=1)) as address:
        url = f"{address}/v1/chat/completions"
        first = threading.Thread(target=lambda: httpx.post(url, json=BODY, timeout=20))
        first.start()
        wait_until(lambda: len(scripted.batches) == 1)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, json=BODY, timeout=0.3)
        wait_until(lambda: httpx.get(f"{address}/healthz").json()["waiting"] == 0)
        going.set()
        assert httpx.post(url, json=BODY).json()["choices"][0]["message"]["content"] == "ok"
        first.join(10)
        assert [len(batch) for batch in scripted.batches] == [1, 1]


def test_what_is_open_when_the_server_ends_is_told_so(tokenizer):
    step = threading.Event()
    scripted = Scripted(tokenizer, lambda conversation: Message("assistant", "word " * 80), lambda: step.wait(10))
    scheduler = Scheduler(lambda: scripted, scripted.batch, max_waiting=4, live_seats=1)
    served = Served(MODEL, frozenset(), "", tokenizer, 600)
    with listening(ChatServer(served, scheduler).app(Access.at("127.0.0.1", None))) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        messages = [{"role": "user", "content": "x"}]
        stream = client.chat.completions.create(model=MODEL, messages=messages, stream=True)
        next(iter(stream))
        ending = threading.Thread(target=scheduler.close)
        ending.start()
        step.set()
        ending.join(10)
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
        with pytest.raises(openai.InternalServerError, match="shutting down") as caught:
            client.chat.completions.create(model=MODEL, messages=messages)
        assert caught.value.status_code == 503
