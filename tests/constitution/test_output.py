"""Outcomes come in any order; files are in task order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nanocode.constitution.output import Decontaminated, InOrder
from nanocode.constitution.rollout import Given, Rollout
from nanocode.conversation import Message, ToolCall
from nanocode.data.decontaminate import EvaluationItem, OverlapIndex


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


LEAK = "return the longest word of the list that begins and ends with the same letter or nothing"
CLEAN = Message("assistant", "done.")


class Kept:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.outcomes: list[Rollout | None] = []

    def take(self, outcome: Rollout | None) -> None:
        self.outcomes.append(outcome)

    def finish(self) -> dict[str, int]:
        return {"taken": len(self.outcomes)}


def test_what_an_assistant_repeats_of_an_evaluation_is_dropped_wherever_it_stands():
    kept = Kept()
    sink = Decontaminated(kept, OverlapIndex([EvaluationItem("leaky/0", LEAK)], 8, 8), 0.5)
    write = Message("assistant", "", ToolCall("Edit", {"file_path": "a.py", "new_string": f"# {LEAK}\n"}))
    asked = Message("user", LEAK)
    versions = [
        ((asked, CLEAN), (asked, CLEAN), None),
        ((asked, Message("assistant", LEAK)), (asked, CLEAN), "contaminated"),
        ((asked, CLEAN), (asked, Message("assistant", LEAK)), "contaminated"),
        ((asked, write, CLEAN), (asked, write, CLEAN), "contaminated"),
    ]
    for draft, accepted, _ in versions:
        sink.take(Rollout(Given("n", "f", "v", ()), draft, accepted, (), None, None, 0, (), ()))
    sink.take(None)
    assert sink.finish() == {"taken": 5}
    assert kept.outcomes[-1] is None
    for outcome, (_, accepted, dropped) in zip(kept.outcomes, versions, strict=False):
        assert outcome is not None
        assert (outcome.dropped, outcome.accepted) == (dropped, None if dropped else accepted)
