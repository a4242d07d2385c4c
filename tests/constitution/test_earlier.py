"""Answers of earlier attempts and runs, read where the own ledger has none."""

from __future__ import annotations

import json
from pathlib import Path

from nanocode.constitution.earlier import EarlierAnswers, Source
from nanocode.constitution.ledger import Ledger


def raw(content: str, finish: str = "stop", tokens: int = 5) -> str:
    choice = {"message": {"content": content}, "finish_reason": finish}
    return json.dumps({"choices": [choice], "usage": {"prompt_tokens": 3, "completion_tokens": tokens}})


def test_the_very_request_comes_before_its_question_and_the_first_file_before_others(tmp_path: Path) -> None:
    with Ledger(tmp_path / "one") as one, Ledger(tmp_path / "two") as two:
        one.put("small", raw("whole"), "q", 10)
        two.put("large", raw("its own"), "q", 99)
        two.put("small", raw("second"), "q", 10)
        sources = [Source(tmp_path / "one", counted=True), Source(tmp_path / "two", counted=False)]
        with EarlierAnswers(sources) as earlier:
            assert len(earlier) == 3
            exact = earlier.find("large", "q", 99)
            assert exact is not None
            assert (exact[0].raw, exact[1]) == (raw("its own"), False)
            by_question = earlier.find("larger", "q", 200)
            assert by_question is not None
            assert (by_question[0].key, by_question[0].raw, by_question[1]) == ("small", raw("whole"), True)
            assert earlier.find("other", "another question", 200) is None


def test_a_cut_answer_serves_its_own_request_alone(tmp_path: Path) -> None:
    with Ledger(tmp_path / "one") as ledger:
        ledger.put("cut", raw("half", "length", 10), "q", 10)
        with EarlierAnswers([Source(tmp_path / "one", counted=False)]) as earlier:
            assert earlier.find("cut", "q", 10) is not None
            assert earlier.find("raised", "q", 20) is None


def test_a_file_that_is_open_elsewhere_torn_or_damaged_gives_what_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "one"
    with Ledger(path) as ledger:
        for name in "abc":
            ledger.put(name, raw(name))
        whole = path.read_bytes()
        path.with_name("torn").write_bytes(whole[:-3])
        damaged = bytearray(whole)
        damaged[whole.index(b"\n") + 30] ^= 1
        path.with_name("damaged").write_bytes(damaged)
        for name, kept in (("one", "abc"), ("torn", "ab"), ("damaged", "a")):
            with EarlierAnswers([Source(path.with_name(name), counted=False)]) as earlier:
                assert [key for key in "abc" if earlier.find(key, "", 1)] == list(kept)
        assert ledger.put("d", raw("d")) == raw("d"), "it is still its owner's"


def test_a_file_that_its_owner_removed_is_passed_over_and_one_that_is_open_stays_readable(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with Ledger(tmp_path / name) as ledger:
            ledger.put(name, raw(name))
    (tmp_path / "one").unlink()
    with EarlierAnswers([Source(tmp_path / name, counted=False) for name in ("one", "two")]) as earlier:
        (tmp_path / "two").unlink()
        assert earlier.find("one", "", 1) is None
        assert earlier.find("two", "", 1) is not None
