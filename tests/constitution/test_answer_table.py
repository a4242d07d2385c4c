"""The table of answers beside a ledger: exact whatever its digests, never stale, never left behind."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanocode.constitution import answer_table
from nanocode.constitution.append_file import AppendFile, LedgerError
from nanocode.constitution.earlier import EarlierAnswers, Source
from nanocode.constitution.ledger import Ledger

RAW = json.dumps({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]})
KEYS = st.text("abc", min_size=1, max_size=2)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(KEYS, st.text("qr", max_size=1), st.integers(1, 3)), max_size=12), st.integers(1, 4))
def test_keys_whose_digests_collide_are_told_apart(tmp_path_factory, records, digests):
    """With as few digests as that, nearly all keys share theirs with others; a dictionary says what is right."""
    path = tmp_path_factory.mktemp("ledger") / "l"
    expected: dict[str, tuple[str, int]] = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(answer_table, "_digest", lambda key: sum(key.encode()) % digests)
        with Ledger(path) as ledger:
            for key, question, bound in records:
                ledger.put(key, RAW, question, bound)
                expected.setdefault(key, (question, bound))
        with Ledger(path) as ledger, EarlierAnswers([Source(path, counted=True)]) as earlier:
            assert {answer.key: (answer.question, answer.bound) for answer in ledger.answers()} == expected
            assert len(ledger) == len(earlier) == len(expected)
            for key in ("a", "b", "ab", "ba", "cc", "absent"):
                assert (key in ledger) == (key in expected)
                found = earlier.find(key, "", 1)
                assert (found[0].key if found else None) == (key if key in expected else None)
            for question in "qr":
                fitting = ledger.fitting(question, 9)
                own = [key for key, (asked, _) in expected.items() if asked == question]
                assert (fitting.key if fitting else None) == (own[0] if own else None)


def test_of_two_records_under_one_key_the_first_counts(tmp_path: Path) -> None:
    with AppendFile(tmp_path / "l") as file:
        list(file.records())
        for record in (["a", "first"], ["b", "other"], ["a", "second"]):
            file.append(record)
    with Ledger(tmp_path / "l") as ledger:
        assert [(answer.key, answer.raw) for answer in ledger.answers()] == [("a", "first"), ("b", "other")]
        assert len(ledger) == 2


def test_it_has_no_name_so_that_a_kill_leaves_nothing(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        ledger.put("a", RAW)
        assert [path.name for path in tmp_path.iterdir()] == ["l"]


def test_without_room_for_it_one_line_says_so_and_no_answer_is_forgotten(tmp_path, monkeypatch):
    """Answers that were passed over in silence would be bought again."""
    with Ledger(tmp_path / "l") as ledger:
        for number in range(2_000):
            ledger.put(str(number), RAW, str(number), 5)
    small = (*answer_table._SET_UP[:-1], "PRAGMA max_page_count = 8", answer_table._SET_UP[-1])
    monkeypatch.setattr(answer_table, "_SET_UP", small)
    for opened in (lambda: Ledger(tmp_path / "l"), lambda: EarlierAnswers([Source(tmp_path / "l", counted=False)])):
        with pytest.raises(LedgerError, match=r"table of answers cannot be kept there \(.*full\): free some space"):
            opened()
    monkeypatch.undo()
    with Ledger(tmp_path / "l") as ledger:
        assert len(ledger) == 2_000


def test_what_sqlite_keeps_in_memory_is_bounded_by_its_cache(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        ledger.put("a", RAW)
        table: sqlite3.Connection = ledger._table._table
        assert table.execute("PRAGMA cache_size").fetchone() == (-answer_table._CACHE_KIB,)
        assert table.execute("PRAGMA journal_mode").fetchone() == ("off",)
