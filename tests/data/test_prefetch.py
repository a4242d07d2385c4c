"""Loading ahead: the same values as without, in any order of asking, and never a thread or an error left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.data.prefetch import Prefetch

STEPS = 12


def square(step: int) -> np.ndarray:
    return np.array([step, step * step])


def loading_threads() -> int:
    return sum(thread.name == "prefetch" for thread in threading.enumerate())


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)


@given(st.lists(st.integers(0, STEPS - 1), max_size=30), st.integers(1, 4))
def test_any_order_of_asking_gives_what_loading_gives(asked: list[int], ahead: int) -> None:
    with Prefetch(square, STEPS, ahead) as prefetch:
        for step in asked:
            assert prefetch(step).tolist() == [step, step * step]
    assert loading_threads() == 0


def test_a_run_in_order_loads_every_step_once() -> None:
    loaded: list[int] = []
    with Prefetch(lambda step: loaded.append(step) or step, STEPS) as prefetch:
        assert [prefetch(step) for step in range(STEPS)] == list(range(STEPS))
    assert loaded == list(range(STEPS))


@pytest.mark.parametrize("ahead", [1, 3])
def test_it_loads_ahead_but_no_further_than_it_may(ahead: int) -> None:
    loaded: list[int] = []
    with Prefetch(lambda step: loaded.append(step) or step, STEPS, ahead) as prefetch:
        prefetch(0)
        wait_until(lambda: len(loaded) == ahead + 2)  # given out, waiting, and one in hand
        time.sleep(0.05)
        assert len(loaded) == ahead + 2


def test_an_error_is_raised_at_its_step_and_the_steps_before_are_served() -> None:
    def load(step: int) -> int:
        if step == 2:
            raise OSError("the disk is gone")
        return step

    with Prefetch(load, STEPS) as prefetch:
        assert [prefetch(0), prefetch(1)] == [0, 1]
        for _ in range(2):
            with pytest.raises(OSError, match="the disk is gone"):
                prefetch(2)
        assert prefetch(3) == 3
    assert loading_threads() == 0


def test_closing_ends_a_thread_that_waits_for_room() -> None:
    prefetch = Prefetch(square, STEPS, 1)
    prefetch(0)
    prefetch.close()
    assert loading_threads() == 0
    assert prefetch(5).tolist() == [5, 25], "a closed one starts anew when it is asked"
    prefetch.close()
    prefetch.close()
    assert loading_threads() == 0


def test_leaving_with_an_error_ends_the_thread() -> None:
    with pytest.raises(KeyboardInterrupt), Prefetch(square, STEPS) as prefetch:
        prefetch(0)
        raise KeyboardInterrupt
    assert loading_threads() == 0


def test_nothing_runs_before_the_first_step_or_beyond_the_last() -> None:
    with Prefetch(square, STEPS) as prefetch:
        assert loading_threads() == 0
        assert prefetch(STEPS - 1)[0] == STEPS - 1
        wait_until(lambda: loading_threads() == 0)
        for step in (-1, STEPS):
            with pytest.raises(IndexError, match=f"step {step} of {STEPS}"):
                prefetch(step)


def test_values_are_not_touched_after_they_were_given_out() -> None:
    with Prefetch(square, STEPS) as prefetch:
        given_out = [prefetch(step) for step in range(STEPS)]
    assert [value.tolist() for value in given_out] == [[step, step * step] for step in range(STEPS)]


def test_room_for_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        Prefetch(square, STEPS, 0)
