"""The journal: which batch a step trains on, and what survives a checkpoint."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from nanocode.training.journal import Journal, Report, Return

skips = st.lists(st.integers(0, 30), max_size=6, unique=True)


def journal_with(skipped: list[int], steps: int = 20) -> Journal:
    return Journal(steps, returns=[Return(1, "fault", (batch,)) for batch in skipped])


@given(skipped=skips)
def test_steps_take_the_batches_in_order_but_for_the_skipped_ones(skipped: list[int]) -> None:
    journal = journal_with(skipped)
    assert [journal.batch_of(step) for step in range(40)] == [b for b in range(80) if b not in skipped][:40]


@given(skipped=skips)
def test_beyond_the_last_batch_the_first_good_ones_come_again(skipped: list[int]) -> None:
    journal = journal_with(skipped)
    good = [batch for batch in range(20) if batch not in skipped]
    assert [journal.source_of(batch) for batch in range(25)] == [*range(20), *good[:5]]


def test_a_run_whose_every_batch_was_skipped_has_batches() -> None:
    assert [journal_with([0, 1], steps=2).source_of(batch) for batch in (2, 3, 4)] == [0, 1, 0]


@given(one=skips, other=skips, done=st.integers(0, 25))
def test_a_checkpoint_is_on_the_course_if_it_used_the_same_batches(one: list[int], other: list[int], done: int) -> None:
    here, there = journal_with(one), journal_with(other)
    there.history = [Report(step, 20, 0.1, {"loss": 1.0}) for step in range(1, done + 1)]
    same = all(here.batch_of(step) == there.batch_of(step) for step in range(done))
    assert here.passes(json.loads(json.dumps(there.position()))) == same


def test_a_journal_comes_back_from_its_text() -> None:
    journal = journal_with([3])
    journal.add(Report(1, 20, 0.25, {"loss": 1.0 / 3.0, "accuracy": 0.5}))
    journal.observations.append({"step": 1, "bpb": 2.5})
    assert Journal.from_json(journal.to_json()) == journal


def test_a_copy_stays_what_it_was() -> None:
    journal = Journal(3)
    journal.add(Report(1, 3, 0.1, {"loss": 1.0}))
    copy = journal.copy()
    journal.add(Report(2, 3, 0.1, {"loss": 1.0}))
    assert (copy.done, copy.executed, journal.done) == (1, 1, 2)


def test_rewinding_forgets_steps_and_what_was_observed_after_them_but_never_counts_down() -> None:
    journal = Journal(9)
    for step in range(1, 6):
        journal.add(Report(step, 9, 0.1, {"loss": 1.0}))
        journal.observations.append({"step": step})
    journal.rewind(2)
    assert (journal.done, journal.executed, journal.observations) == (2, 5, [{"step": 1}, {"step": 2}])


def test_the_lines_tell_every_step_and_no_time() -> None:
    quick, slow = Journal(2), Journal(2)
    for journal, seconds in ((quick, 0.1), (slow, 9.0)):
        journal.returns.append(Return(2, "the loss became nan at step 2", (0, 1)))
        for step in (1, 2):
            journal.add(Report(step, 2, seconds, {"loss": 0.5}))
    assert list(quick.lines()) == list(slow.lines())
    assert [json.loads(line) for line in quick.lines()] == [
        {"step": 1, "loss": 0.5},
        {"event": "returned", "step": 2, "fault": "the loss became nan at step 2", "skipped": [0, 1]},
        {"step": 2, "loss": 0.5},
    ]
