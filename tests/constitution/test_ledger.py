import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanocode.constitution.accounts import Accounts
from nanocode.constitution.append_file import AppendFile
from nanocode.constitution.earlier import EarlierAnswers, Source
from nanocode.constitution.ledger import Answer, Ledger, LedgerError, question_key, request_key

REQUEST = {
    "model": "m",
    "temperature": 0.5,
    "max_tokens": 7,
    "seed": 1,
    "messages": [{"role": "user", "content": "é\n"}],
}


def write(path: Path, records: dict[str, str]) -> bytes:
    with Ledger(path) as ledger:
        for key, raw in records.items():
            ledger.put(key, raw)
    return path.read_bytes()


@settings(max_examples=50, deadline=None)
@given(records=st.dictionaries(st.text(min_size=1), st.text()))
def test_what_was_put_is_there_after_reopening(records, tmp_path_factory):
    path = tmp_path_factory.mktemp("ledger") / "l.jsonl"
    write(path, records)
    with Ledger(path) as ledger:
        assert {key: ledger.get(key) for key in ledger} == records
        assert list(ledger) == list(records)


def test_a_kill_at_any_byte_loses_only_the_torn_record(tmp_path):
    path = tmp_path / "l.jsonl"
    records = {"a": "first", "b": "line\nbreak → é", "c": "third"}
    whole = write(path, records)
    ends = [end + 1 for end, byte in enumerate(whole) if byte == 10]
    assert len(ends) == 3
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        kept = sum(end <= cut for end in ends)
        with Ledger(path) as ledger:
            assert list(ledger) == list(records)[:kept]
            assert ledger.torn_bytes == cut - max([0, *ends[:kept]])
            ledger.put("d", "appended")
        with Ledger(path) as ledger:
            assert [ledger.get(key) for key in ledger] == [*list(records.values())[:kept], "appended"]


def test_damage_before_the_end_is_an_error_that_says_where(tmp_path):
    path = tmp_path / "l.jsonl"
    whole = bytearray(write(path, {"a": "first", "b": "second"}))
    whole[25] ^= 1
    path.write_bytes(whole)
    with pytest.raises(LedgerError, match="record at byte 0 is damaged"):
        Ledger(path)


def test_a_record_that_changes_under_an_open_ledger_is_not_served(tmp_path):
    path = tmp_path / "l.jsonl"
    with Ledger(path) as ledger:
        ledger.put("a", "paid for")
        path.write_bytes(path.read_bytes().replace(b"paid", b"fake"))
        with pytest.raises(LedgerError, match="changed on disk"):
            ledger.get("a")


def test_the_first_completion_under_a_key_stays(tmp_path):
    with Ledger(tmp_path / "l.jsonl") as ledger:
        assert ledger.put("a", "first") == "first"
        assert ledger.put("a", "second") == "first"
        assert len(ledger) == 1
        assert "a" in ledger
        assert ledger.get("b") is None


def test_a_second_writer_is_refused(tmp_path):
    with Ledger(tmp_path / "l.jsonl"), pytest.raises(LedgerError, match="in use by another process"):
        Ledger(tmp_path / "l.jsonl")


def test_records_survive_a_process_that_dies_at_once(tmp_path):
    path = tmp_path / "l.jsonl"
    program = (
        "import os, sys; from nanocode.constitution.ledger import Ledger; "
        "ledger = Ledger(sys.argv[1]); ledger.put('a', 'kept'); os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(path)], cwd=Path(__file__).parents[2], check=False)
    assert ended.returncode == -9
    with Ledger(path) as ledger:
        assert ledger.get("a") == "kept"


@pytest.mark.parametrize(
    "change",
    [
        {"model": "n"},
        {"temperature": 0.6},
        {"max_tokens": 8},
        {"seed": 2},
        {"messages": []},
        {"tools": []},
        {"response_format": {"type": "json_object"}},
    ],
)
def test_every_field_of_a_request_is_part_of_its_key(change):
    assert request_key(REQUEST, "0", "t") != request_key(REQUEST | change, "0", "t")


def test_sample_and_template_are_part_of_the_key_and_field_order_is_not():
    keys = {request_key(REQUEST, sample, template) for sample in "01" for template in "tu"}
    assert len(keys) == 4
    assert request_key(dict(reversed(REQUEST.items())), "0", "t") in keys


def test_a_request_that_has_no_canonical_form_is_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        request_key(REQUEST | {"temperature": float("nan")}, "0", "t")


def test_a_question_is_a_request_without_what_only_bounds_its_answer():
    assert question_key(REQUEST, "0", "t") == question_key(REQUEST | {"max_tokens": 8}, "0", "t")
    shaping = [{"model": "n"}, {"temperature": 0.6}, {"seed": 2}, {"messages": []}, {"tools": []}]
    asked = [(REQUEST | change, "0", "t") for change in shaping] + [(REQUEST, "1", "t"), (REQUEST, "0", "u")]
    keys = {question_key(*each) for each in asked}
    assert len(keys) == len(asked)
    assert question_key(REQUEST, "0", "t") not in keys


def said(finish, tokens):
    usage = {"prompt_tokens": 3, "completion_tokens": tokens}
    return json.dumps({"choices": [{"message": {"content": "x"}, "finish_reason": finish}], "usage": usage})


@given(
    given_under=st.integers(1, 40) | st.none(), asked=st.integers(1, 40), length=st.integers(1, 40), cut=st.booleans()
)
def test_an_answer_holds_under_every_bound_that_its_length_fits_unless_it_was_cut(given_under, asked, length, cut):
    if given_under is not None:
        length = given_under if cut else min(length, given_under)
    answer = Answer("k", said("length" if cut else "stop", length), "q", given_under)
    assert answer.fits(asked) == (not cut and length <= asked)


def test_an_answer_of_unknown_length_holds_under_larger_bounds_alone():
    raw = json.dumps({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]})
    assert Answer("k", raw, "q", 10).fits(10)
    assert not Answer("k", raw, "q", 10).fits(9)
    assert not Answer("k", raw).fits(10_000)


def test_a_ledger_finds_the_whole_answer_among_those_to_a_question(tmp_path):
    with Ledger(tmp_path / "l.jsonl") as ledger:
        ledger.put("old", "without a question")
        ledger.put("a", said("length", 5), "q", 5)
        assert ledger.fitting("q", 20) is None
        ledger.put("b", said("stop", 9), "q", 10)
    with Ledger(tmp_path / "l.jsonl") as ledger:
        assert ledger.fitting("q", 20) == ledger.fitting("q", 9) == Answer("b", said("stop", 9), "q", 10)
        assert ledger.fitting("q", 8) is None
        assert ledger.fitting("", 20) is None
        assert [answer.key for answer in ledger.answers()] == ["old", "a", "b"]


@pytest.mark.parametrize(
    "record", [{"key": "a", "raw": "b"}, ["a"], ["a", "b", "q"], ["a", "b", "q", 5, "more"], ["a", 5], "a", 7, None]
)
def test_a_file_of_another_version_is_refused_in_one_line_that_names_it(record, tmp_path):
    path = tmp_path / "l.jsonl"
    with AppendFile(path) as file:
        list(file.records())
        file.append(["a", "an answer of this version"])
        file.append(record)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=rf"^{path} holds a record that is no answer: .* move it away$"):
        Ledger(path)
    assert path.read_bytes() == before, "nothing that was paid for is cut off"
    with EarlierAnswers([Source(path, counted=False)]) as earlier:
        assert len(earlier) == 1, "what stands before it is of use"


@pytest.mark.parametrize("record", [["reserved", "a", "critic", 5], ["settled", "a", "critic", 5, 0.1], {"a": 1}, 5])
def test_accounts_of_another_version_are_refused_too(record, tmp_path):
    path = tmp_path / "l.accounts"
    with AppendFile(path) as file:
        list(file.records())
        file.append(record)
    with (
        Ledger(tmp_path / "l.jsonl") as ledger,
        pytest.raises(LedgerError, match=rf"^{path} holds a record that is no entry of accounts: .* move it away$"),
    ):
        Accounts(path, ledger, {"critic": None})
