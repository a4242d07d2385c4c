import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.constitution.parsing import CriticReply, Unparsed, parse_critique, parse_texts

IDS = ("lowercase", "concrete")
REPLY = {"score": 4, "violations": ["lowercase"], "critique": "too loud"}
TEXT = json.dumps(REPLY)


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        f"```json\n{TEXT}\n```",
        f"```\n{TEXT}\n```",
        f"Here is my judgement: {TEXT} I hope it is fair {{sic}}.",
        f"\n\n  {TEXT}\n",
        f"The f-string {{name}} and the set {{1, 2}} are fine. {TEXT}",
        f'One might say {{"score": 5}}, but:\n```json\n{TEXT}\n```',
        json.dumps(REPLY | {"confidence": 0.9}),
    ],
)
def test_a_readable_reply_is_read_wherever_it_stands(text):
    assert parse_critique(text, IDS) == CriticReply(4, ("lowercase",), "too loud")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the score is 4",
        TEXT[:-1],
        TEXT[: len(TEXT) // 2],
        TEXT.replace('"', "'"),
        f"[{TEXT[:10]}",
        f'{{"judgement": {TEXT}, "and',
        f'```json\n{{"judgement": {TEXT}, "and\n```',
        "4",
        "null",
        *(json.dumps(REPLY | {"score": score}) for score in ("4", "4/5", 0, 6, -1, 4.5, 4.0, None, True, [4])),
        TEXT.replace("4", "NaN"),
        TEXT.replace("4", "Infinity"),
        json.dumps(REPLY | {"violations": ["lowercase", "no-rhymes"]}),
        json.dumps(REPLY | {"violations": "lowercase"}),
        json.dumps(REPLY | {"violations": []}),
        json.dumps(REPLY | {"score": 5}),
        json.dumps(REPLY | {"critique": None}),
        json.dumps({"score": 5, "violations": []}),
    ],
)
def test_anything_else_is_unparsed_and_never_a_score(text):
    with pytest.raises(Unparsed):
        parse_critique(text, IDS)


@given(st.text())
def test_no_text_makes_the_parser_fail_otherwise(text):
    try:
        assert 1 <= parse_critique(text, IDS).score <= 5
    except Unparsed as fault:
        assert str(fault)


def test_texts_must_be_as_many_as_asked():
    assert parse_texts('{"texts": ["a", ""]}', 2) == ("a", "")
    for text in ('{"texts": ["a"]}', '{"texts": ["a", 2]}', '{"texts": "ab"}', "{}", "a b"):
        with pytest.raises(Unparsed):
            parse_texts(text, 2)
