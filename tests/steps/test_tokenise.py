"""Tokenisation and planning as stages: the same text gives the same bytes, however often it was interrupted."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanocode.data.arrays import ArrayFileError
from nanocode.data.loader import TokenRows
from nanocode.data.plans import open_plans
from nanocode.data.rows import PackedRows
from nanocode.data.shards import ShardError
from nanocode.data.tokens import open_tokens
from nanocode.stopping import Interrupted
from nanocode.tokenizer import Tokenizer
from steps import plan_rows, tokenise

CONTEXT = 16
SHARDS = {
    "train-00000": range(25),
    "train-00001": range(25, 50),
    "train-00002": range(50, 60),
    "validation-00000": range(60, 66),
}


def text_of(number: int) -> str:
    return f"def add_{number}(first):\n    return first + {number}\n" * 3


def quiet(line: str) -> None:
    """Nobody listens."""


@pytest.fixture
def sources(tokenizer: Tokenizer, tmp_path: Path) -> tokenise.Inputs:
    """Three training shards and one for validation, of one source."""
    shards, output = tmp_path / "shards", tmp_path / "output"
    shards.mkdir()
    output.mkdir()
    for name, numbers in SHARDS.items():
        table = pa.table({"text": [text_of(number) for number in numbers]})
        pq.write_table(table, shards / f"{name}.parquet", row_group_size=8)
    (shards / "report.json").write_text('{"source": "docs"}')
    tokenizer.save(tmp_path / "tokenizer.json")
    return tokenise.Inputs(shards, tmp_path, output)


def files(folder: Path) -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_every_document_of_every_shard_is_there(sources: tokenise.Inputs, tokenizer: Tokenizer) -> None:
    metrics = tokenise.run(sources, 1, quiet)
    shards = open_tokens(sources.output, "train")
    assert [shard.name for shard in shards] == sorted(SHARDS)[:3]
    documents = [shard.document(index).tolist() for shard in shards for index in range(shard.documents)]
    assert documents == [[tokenizer.bos, *tokenizer.encode(text_of(number))] for number in range(60)]
    assert metrics["documents"] == 66 and metrics["source"] == "docs"


def test_the_bytes_do_not_depend_on_the_number_of_processes(sources: tokenise.Inputs) -> None:
    tokenise.run(sources, 1, quiet)
    alone = files(sources.output)
    shutil.rmtree(sources.output)
    sources.output.mkdir()
    tokenise.run(sources, 2, quiet)
    assert files(sources.output) == alone


@pytest.mark.parametrize("stop_after", [0, 1, 2])
def test_a_stopped_run_that_goes_on_gives_the_same_bytes(sources: tokenise.Inputs, stop_after: int) -> None:
    tokenise.run(sources, 1, quiet)
    uninterrupted = files(sources.output)
    shutil.rmtree(sources.output)
    sources.output.mkdir()
    saved: list[tokenise.Entries] = [{}]
    with pytest.raises(Interrupted, match="run the same command"):
        tokenise.run(sources, 1, quiet, lambda entries: saved.append(dict(entries)), lambda: len(saved) > stop_after)
    assert len(saved[-1]) == stop_after
    with pytest.raises(ArrayFileError, match="never completed"):
        open_tokens(sources.output, "train")
    said: list[str] = []
    tokenise.run(tokenise.Inputs(sources.shards, sources.tokenizer, sources.output, saved[-1]), 1, said.append)
    assert files(sources.output) == uninterrupted
    assert len(said) == len(uninterrupted) // 2 - stop_after, "what was finished is not done again"


def test_a_source_whose_only_shard_is_validation_is_an_error_not_an_endless_wait(sources: tokenise.Inputs) -> None:
    """Guards the kind of a single parquet file that becomes validation and leaves the loader spinning."""
    for shard in sources.shards.glob("train-*"):
        shard.unlink()
    with pytest.raises(ShardError, match="no train shards"):
        tokenise.run(sources, 1, quiet)


def test_the_plan_has_one_part_for_each_training_shard(sources: tokenise.Inputs, tmp_path: Path) -> None:
    tokenise.run(sources, 1, quiet)
    plans = tmp_path / "plans"
    plans.mkdir()
    metrics = plan_rows.run(sources.output, CONTEXT, plans, quiet)
    shards = open_tokens(sources.output, "train")
    rows = PackedRows("docs", 1.0, shards, open_plans(plans, shards))
    assert len(rows) == metrics["rows"] > 10 and rows.row_tokens == CONTEXT + 1
    assert metrics["tokens"] == sum(len(shard.ids) for shard in shards), "validation is not planned"
    assert not list(plans.glob("validation-*"))


def test_a_resumed_run_reads_the_batches_that_it_missed(sources: tokenise.Inputs, tmp_path: Path) -> None:
    tokenise.run(sources, 1, quiet)
    plans = tmp_path / "plans"
    plans.mkdir()
    plan_rows.run(sources.output, CONTEXT, plans, quiet)

    def fresh() -> TokenRows:
        shards = open_tokens(sources.output, "train")
        return TokenRows([PackedRows("docs", 1.0, shards, open_plans(plans, shards))], 4, seed=3)

    whole = fresh()
    uninterrupted = [whole.batch(step).ids for step in range(40)]
    for first in range(40):
        assert np.array_equal(fresh().batch(first).ids, uninterrupted[first])
