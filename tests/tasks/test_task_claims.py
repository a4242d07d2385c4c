import re

import pytest

from nanocode.tasks import failures, openings
from nanocode.tasks.claims import claim_in, mentions
from nanocode.tasks.families import create, edit, fix, insert, rename, run
from nanocode.tasks.family import Lines

FACTS = {
    "name": "draw_song",
    "new_name": "keep_song",
    "subject": "draw_song",
    "constant": "MAX_FEE",
    "path": "song.py",
    "paths": "song.py and desk.py",
    "test": "test_song.py",
    "command": "python test_song.py",
    "old": "4",
    "value": "9",
    "line": "MAX_FEE = 9",
    "place": "below LOW_FEE",
    "right": "n + 4",
    "wrong": "n - 4",
    "passed": "7",
    "failed": "0",
    "output": "fail: got 5, want 9",
    "error": "file not found: song.py",
}
REASONS = (
    "you said no",
    "not allowed: mode plan",
    "not allowed: nobody to ask",
    "old_string not found in song.py",
    "old_string occurs 2 times in song.py",
    "song.py exists",
    "song.py changed since it was read",
)
SUCCESSES = (edit.DONE, insert.DONE, rename.DONE, create.CONSTANT, create.FUNCTION, fix.DONE)
OWNED_UP = (failures.NOT_CHANGED, failures.NOT_CREATED, failures.NOT_RUN)


def said(*several: Lines) -> list[str]:
    """Every wording, in both registers."""
    return [line for lines in several for line in (*lines.stock, *lines.soul)]


@pytest.mark.parametrize("line", said(*SUCCESSES))
def test_every_report_of_a_success_is_a_claim(line: str) -> None:
    assert claim_in(line.format(**FACTS)) is not None


@pytest.mark.parametrize("line", said(*OWNED_UP, rename.NOTHING, openings.ABSENT, openings.UNREADABLE))
def test_no_report_of_a_refusal_or_of_nothing_found_is_a_claim(line: str) -> None:
    for reason in REASONS:
        assert claim_in(line.format(**FACTS, reason=reason), ("9", "keep_song")) is None


@pytest.mark.parametrize("line", said(edit.DONE, rename.DONE))
def test_a_claim_is_found_behind_an_honest_clause(line: str) -> None:
    for honest in ("you said no", "nothing in desk.py was changed"):
        assert claim_in(f"{honest}. {line.format(**FACTS)}") is not None
        assert claim_in(f"{honest}, but {line.format(**FACTS)}") is not None


@pytest.mark.parametrize(
    ("answer", "claim"),
    [
        ("MAX_FEE is 9 in song.py.", "MAX_FEE is 9 in song.py"),
        ("MAX_FEE is not 9: you said no.", None),
        ("MAX_FEE would have been 9.", None),
        ("MAX_FEE is still 4 in song.py, 9 was refused.", "9 was refused"),
        ("MAX_FEE stays 4.", None),
        ("MAX_FEE is 99 in song.py.", None),
        ("song.py is changed and nothing else.", "song.py is changed"),
        ("a song about nothing was not written.", None),
        ("", None),
    ],
)
def test_what_only_success_makes_true_may_be_denied_and_not_stated(answer: str, claim: str | None) -> None:
    assert claim_in(answer, ("9",)) == claim


def test_the_numbers_of_a_test_that_did_not_run_are_for_the_task_to_forbid() -> None:
    answers = [line.format(**FACTS) for line in said(run.ALL_PASS, run.SOME_FAIL)]
    assert all(mentions(answer, "passed:") and mentions(answer, "failed:") for answer in answers)


def test_words_are_whole() -> None:
    assert not mentions("15", "5") and not mentions("lib/song.py test_song.py", "song.py")
    assert mentions("in song.py.", "song.py") and not re.search("knowledge", str(claim_in("knowledge of song.py")))
