"""Blocks that can be gone on from, and patience that ends."""

from __future__ import annotations

import json

import pytest

from nanocode.data.documents import RawDocument, SourceError
from nanocode.data.reading import Retry, counted_blocks


def documents(count: int) -> list[RawDocument]:
    return [RawDocument(str(number), f"o{number}", "MIT", f"o{number}") for number in range(count)]


@pytest.mark.parametrize("count", [0, 1, 6, 7])
def test_a_list_goes_on_after_any_of_its_blocks(count: int) -> None:
    whole = list(counted_blocks(documents(count), 3, None))
    assert [document for block in whole for document in block.documents] == documents(count)
    for done, block in enumerate(whole, 1):
        start = json.loads(json.dumps(block.after))
        assert list(counted_blocks(documents(count), 3, start)) == whole[done:]


def test_pauses_double_up_to_a_limit_and_then_the_error_is_the_users() -> None:
    lines: list[str] = []
    pauses: list[float] = []
    retry = Retry(6, lines.append, pauses.append, first_seconds=2, longest_seconds=10)
    for failures in range(1, 6):
        retry.pause(failures, "a.parquet", OSError("reset\nby peer"))
    assert pauses == [2, 4, 8, 10, 10]
    assert lines[0] == "a.parquet: reset; trying again in 2 s (1 of 6 attempts failed)"
    with pytest.raises(SourceError, match=r"^a\.parquet: TimeoutError; gave up after 6 attempts: check the network"):
        retry.pause(6, "a.parquet", TimeoutError())
