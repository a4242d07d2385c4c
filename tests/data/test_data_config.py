"""The [data] section: what is refused before anything is read, and what is no part of a corpus' identity."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from nanocode.config import DataConfig, FilterConfig

FILES = {"name": "mine", "kind": "files", "register_as": "text", "glob": "x/*.jsonl", "licence": "CC0-1.0"}
SET = {"name": "bench", "glob": "y/*.jsonl", "sha256": "0" * 64}


def data(source: dict[str, Any] | None = None, **changes: Any) -> DataConfig:
    return DataConfig.model_validate({"sources": [FILES | (source or {})]} | changes)


@pytest.mark.parametrize(
    ("source", "changes", "message"),
    [
        ({"licences": ["MIT"]}, {}, "licences needs licence_column"),
        ({"filters": {"email": "hide"}}, {}, "'off', 'count', 'redact' or 'drop'"),
        ({"filters": {"emails": "drop"}}, {}, "Extra inputs"),
        ({}, {"decontamination": {"sets": [SET, SET]}}, "two data.decontamination.sets share a name"),
        ({}, {"decontamination": {"sets": [{"name": "a", "sha256": "0"}]}}, "needs a glob"),
        ({}, {"decontamination": {"sets": [SET | {"kind": "tasks"}]}}, "no other kind takes one"),
        ({}, {"decontamination": {"sets": [{"name": "a", "glob": "y"}]}}, "Field required"),
        ({}, {"workers": 0}, "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_meant_is_refused(source: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        data(source, **changes)


def test_how_a_corpus_is_read_is_no_part_of_what_it_is() -> None:
    assert data(workers=8, max_attempts=1).identity() == data().identity()
    decides = [
        data({"filters": {"email": "drop"}}),
        data({"licence_column": "found"}),
        data({"licence_column": "found", "licences": ["MIT"]}),
        data(decontamination={"sets": [SET]}),
        data(decontamination={"sets": [SET | {"sha256": "1" * 64}]}),
        data(decontamination={"sets": [SET], "action": "report"}),
    ]
    assert len({repr(each.identity()) for each in [data(), *decides]}) == 7


def test_personal_data_is_only_counted_in_the_published_library_and_secrets_never_stay() -> None:
    library = DataConfig.model_validate({"sources": [{"name": "std", "kind": "python_stdlib"}]}).sources[0].filters
    assert {name for name in FilterConfig.model_fields if getattr(library, name) == "count"} == {
        "email",
        "ipv4",
        "phone",
        "credit_card",
    }
    assert {getattr(FilterConfig(), name) for name in FilterConfig.model_fields} == {"redact"}
