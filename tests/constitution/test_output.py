"""Outcomes come in any order; files are in task order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nanocode.constitution.output import InOrder
from nanocode.constitution.rollout import Given, Rollout


def outcome(name: str) -> Rollout:
    return Rollout(Given(name, "f", "v", ()), (), None, (), None, "dropped", 0, (), ())


@given(st.permutations(range(12)), st.sets(st.integers(0, 11)))
def test_outcomes_in_any_order_are_handed_on_in_theirs_each_once(finished, refused):
    taken: list[str | None] = []
    ordered = InOrder(lambda each: taken.append(None if each is None else each.task.id))
    for place, index in enumerate(finished, 1):
        ordered.put(index, None if index in refused else outcome(str(index)))
        done = set(finished[:place])
        ready = next(number for number in range(13) if number not in done)
        assert len(taken) == ready, "what is whole up to here, and no more"
    assert taken == [None if index in refused else str(index) for index in range(12)]
