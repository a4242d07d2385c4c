import asyncio
import random
import selectors

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanocode.constitution.limiter import FIRST_LIMIT, SPREAD_SECONDS, SUCCESSES_PER_STEP, Limiter


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self):
        super().__init__()
        self.now = 0.0

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready and timeout is not None:
            self.now += timeout
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    """Its waits take no time: the clock jumps to the next timer whenever nothing else is to do."""

    def __init__(self):
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self):
        return self._jumping.now


def run_virtually(main):
    """Run `main(clock)` to its end in made-up time; `clock` gives the seconds since the start."""
    loop = _VirtualLoop()
    try:
        return loop.run_until_complete(main(loop.time))
    finally:
        loop.close()


def limiter(most=64, clock=lambda: 0.0):
    return Limiter(most, random.Random(1), clock)


class Server:
    """Copes with `capacity` requests at once, each of which takes a second; complains about any more."""

    def __init__(self, limiter, clock, capacity, retry_after=None):
        self.limiter, self.clock, self.capacity, self.retry_after = limiter, clock, capacity, retry_after
        self.busy = self.most = self.complaints = 0
        self.arrivals = []

    async def request(self):
        """True for an answer."""
        permit = await self.limiter.acquire()
        self.arrivals.append(self.clock())
        try:
            if self.busy >= self.capacity:
                self.complaints += 1
                await asyncio.sleep(0.01)
                self.limiter.complained(permit, self.retry_after)
                return False
            self.busy += 1
            self.most = max(self.most, self.busy)
            await asyncio.sleep(1)
            self.busy -= 1
            self.limiter.succeeded()
            return True
        finally:
            self.limiter.release()

    async def insist(self):
        while not await self.request():
            pass


def serve(requests, most, capacity, retry_after=None):
    async def main(clock):
        server = Server(limiter(most, clock), clock, capacity, retry_after)
        await asyncio.gather(*(server.insist() for _ in range(requests)))
        return server, clock()

    return run_virtually(main)


def test_an_endpoint_that_copes_gets_all_that_is_allowed_after_a_few_rounds():
    server, seconds = serve(1_000, 64, 1_000)
    assert server.most == 64
    assert seconds <= 1_000 / 64 + 4


def test_fifty_rounds_keep_nine_tenths_of_the_places_busy_with_the_first_rounds_and_the_last():
    """The benchmark's figure without a processor in the way: what the start and the last, partly filled round cost."""
    _, seconds = serve(50 * 32, 32, 1_000)
    assert 50 / seconds >= 0.98


def test_never_more_than_allowed_and_no_more_than_that_at_the_start():
    assert serve(100, 3, 1_000)[0].most == 3
    assert limiter(most=3).limit == 3
    assert limiter(most=500).limit == FIRST_LIMIT


def test_an_endpoint_that_complains_is_kept_near_what_it_copes_with():
    server, seconds = serve(3_000, 200, 20)
    assert server.most == 20
    assert seconds < 1.25 * 3_000 / 20
    assert server.complaints < 100


def test_only_the_first_complaint_of_a_burst_cuts():
    async def main(clock):
        tested = limiter(8, clock)
        permits = [await tested.acquire() for _ in range(8)]
        for permit in permits:
            tested.complained(permit)
            tested.release()
        assert (tested.limit, tested.cuts) == (6, 1)
        tested.complained(await tested.acquire())
        assert (tested.limit, tested.cuts) == (4, 2)

    run_virtually(main)


def test_the_limit_comes_back_step_by_step_and_slowly_beyond_where_it_was_too_much():
    async def main(clock):
        tested = limiter(64, clock)
        tested.limit = 40
        tested.complained(await tested.acquire())
        assert tested.limit == 30
        grown = {}
        for success in range(1, 60 * SUCCESSES_PER_STEP):
            before = tested.limit
            tested.succeeded()
            if tested.limit > before:
                grown[tested.limit] = success
        steps = [grown[limit] - grown.get(limit - 1, 0) for limit in range(31, 43)]
        assert steps == [SUCCESSES_PER_STEP] * 9 + [10 * SUCCESSES_PER_STEP] * 3
        small = limiter(8, clock)
        small.complained(await small.acquire())
        for _ in range(6):
            assert small.limit == 6, "less than a round of answers"
            small.succeeded()
        assert small.limit == 7

    run_virtually(main)


def test_retry_after_holds_everybody_back_and_they_come_back_spread():
    async def main(clock):
        tested = limiter(8, clock)
        permit = await tested.acquire()
        tested.complained(permit, retry_after=30)
        tested.complained(permit, retry_after=5)
        tested.release()
        arrivals = []

        async def request():
            await tested.acquire()
            arrivals.append(clock())
            tested.release()

        await asyncio.gather(*(request() for _ in range(20)))
        assert all(30 <= at <= 30 + SPREAD_SECONDS for at in arrivals)
        assert len(arrivals) == 20
        assert len(set(arrivals)) == tested.limit

    run_virtually(main)


def test_the_limit_never_falls_below_one():
    async def main(clock):
        tested = limiter(8, clock)
        for _ in range(20):
            tested.complained(await tested.acquire())
            tested.release()
        assert tested.limit == 1
        await tested.acquire()

    run_virtually(main)


def test_a_request_that_is_given_up_while_it_waits_leaves_its_place_to_the_next():
    async def main(clock):
        tested = limiter(1, clock)
        await tested.acquire()
        first, second = asyncio.ensure_future(tested.acquire()), asyncio.ensure_future(tested.acquire())
        await asyncio.sleep(0)
        tested.release()
        first.cancel()
        await asyncio.wait_for(second, 5)
        assert first.cancelled()
        assert tested.in_flight == 1

    run_virtually(main)


@settings(max_examples=30, deadline=None)
@given(
    requests=st.integers(1, 60),
    most=st.integers(1, 40),
    capacity=st.integers(1, 40),
    retry_after=st.sampled_from([None, 0.5, 7]),
)
def test_every_request_gets_its_turn_and_none_comes_too_early(requests, most, capacity, retry_after):
    server, _ = serve(requests, most, capacity, retry_after)
    assert len(server.arrivals) == requests + server.complaints
    assert server.most <= min(most, capacity)
    assert server.limiter.in_flight == 0


def test_an_endpoint_without_a_place_is_refused():
    with pytest.raises(ValueError, match="at least one request"):
        limiter(0)
