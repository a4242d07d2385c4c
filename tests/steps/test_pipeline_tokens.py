"""Tokens and plans as artifacts: what a change makes again, what it finds again, and a stop in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from artifacts.build import Build, RunInfo, Stage
from artifacts.repository import Repository
from artifacts.store import open_store
from nanocode import config_file as configs
from nanocode.stopping import Interrupted
from nanocode.tokenizer import Tokenizer
from steps import pipeline

TINY = Path(__file__).parents[1] / "e2e" / "tiny.toml"
SHARDS = {"train-00000": 40, "train-00001": 40, "validation-00000": 5}


@pytest.fixture
def open_run(tmp_path: Path) -> Callable[..., pipeline.Run]:
    """`open_run(*overrides)`: a run over the test's own store, whose lines are kept in `said`."""

    def make(*overrides: str, store: str = "store") -> pipeline.Run:
        repository = Repository(open_store(f"file:{tmp_path / store}", tmp_path))
        info = RunInfo("Test", "1", "tester")
        return pipeline.Run(
            configs.load(TINY, overrides), repository, info, say=lambda line: None, work=tmp_path / "work"
        )

    return make


def sources(run: pipeline.Run, tokenizer: Tokenizer, text: str = "return first + second\n") -> tuple[str, str]:
    """Records of some shards and of a tokenizer, as other stages would leave them."""

    def shards(making: Build) -> Mapping[str, object]:
        for name, documents in SHARDS.items():
            table = pa.table({"text": [f"{number}: {text * 3}" for number in range(documents)]})
            pq.write_table(table, making.output / f"{name}.parquet")
        (making.output / "report.json").write_text('{"source": "docs"}')
        return {}

    def fitted(making: Build) -> Mapping[str, object]:
        tokenizer.save(making.output / "tokenizer.json")
        return {}

    made = run.make(Stage("shard_data", "shards", "tiny/shards", "steps.import_file", {"text": text}), shards)
    return made, run.make(Stage("fit_tokenizer", "tokenizer", "tiny/tokenizer", "steps.import_file", {}), fitted)


def both(run: pipeline.Run, tokenizer: Tokenizer) -> tuple[str, str]:
    """The records of tokens and plan."""
    shards, fitted = sources(run, tokenizer)
    tokens = pipeline.tokenise(run, "docs", shards, fitted)
    return tokens, pipeline.plan_rows(run, "docs", tokens)


def test_another_pretrain_section_finds_tokens_and_plan(
    open_run: Callable[..., pipeline.Run], tokenizer: Tokenizer
) -> None:
    first = both(open_run(), tokenizer)
    assert both(open_run("pretrain.steps=7", "seed=9", "model.depth=3"), tokenizer) == first


def test_another_context_finds_the_tokens_and_plans_anew(
    open_run: Callable[..., pipeline.Run], tokenizer: Tokenizer
) -> None:
    tokens, plan = both(open_run(), tokenizer)
    same_tokens, other_plan = both(open_run("model.context_tokens=64"), tokenizer)
    assert same_tokens == tokens and other_plan != plan


def test_other_text_is_tokenised(open_run: Callable[..., pipeline.Run], tokenizer: Tokenizer) -> None:
    run = open_run()
    digests = [pipeline.tokenise(run, "docs", *sources(run, tokenizer, text)) for text in ("one\n", "other\n")]
    assert digests[0] != digests[1]


def test_the_lineage_of_a_plan_leads_to_tokens_shards_and_tokenizer(
    open_run: Callable[..., pipeline.Run], tokenizer: Tokenizer
) -> None:
    run = open_run()
    shards, fitted = sources(run, tokenizer)
    tokens, plan = both(run, tokenizer)
    records = {digest: run.repository.read_record(digest) for digest in (tokens, plan)}
    assert dict(records[plan].inputs) == {"tokens": tokens}
    assert dict(records[tokens].inputs) == {"shards": shards, "tokenizer": fitted}
    assert (records[tokens].kind, records[plan].kind) == ("tokens", "plan")
    assert (records[tokens].name, records[plan].name) == ("tiny/tokens-docs", "tiny/plan-docs")


def test_a_stop_keeps_whole_shards_and_the_record_is_that_of_an_undisturbed_run(
    open_run: Callable[..., pipeline.Run], tokenizer: Tokenizer
) -> None:
    undisturbed, _ = both(open_run(store="other"), tokenizer)
    said: list[str] = []
    run = open_run("compute.checkpoint_every_seconds=1e-9")
    shards, fitted = sources(run, tokenizer)
    stopped = replace(run, say=said.append, stop_requested=lambda: "tokenise: train-00000: " in "".join(said))
    with pytest.raises(Interrupted):
        pipeline.tokenise(stopped, "docs", shards, fitted)
    said.clear()
    assert pipeline.tokenise(replace(run, say=said.append), "docs", shards, fitted) == undisturbed
    assert "tokenise: 1 shards of docs were finished before" in said
    assert not any(line.startswith("tokenise: train-00000") for line in said)
