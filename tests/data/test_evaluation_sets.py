"""Evaluation sets are read whole, and refused when they are not the ones that the config pins."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanocode.config import DecontaminationConfig, EvaluationSet
from nanocode.data.documents import SourceError
from nanocode.data.evaluation_sets import overlap_index, pinned_items

ROWS = [{"prompt": f"def f{number}():", "test": f"assert f{number}() == {number}"} for number in range(5)]


def evaluation_set(sha256: str = "0", **changes: Any) -> EvaluationSet:
    return EvaluationSet.model_validate({"name": "bench", "sha256": sha256, **changes})


def pinned(**changes: Any) -> EvaluationSet:
    """The set with the digest that the refusal names: what a user does."""
    with pytest.raises(SourceError, match=r"'bench' is not the pinned one: its \d+ items have sha256") as refused:
        pinned_items(evaluation_set(**changes))
    digest = re.search(r"have sha256 (\w{64})", str(refused.value))
    assert digest is not None
    return evaluation_set(digest[1], **changes)


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.parquet"])
def test_rows_of_every_format_are_the_same_items(tmp_path: Path, name: str) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    if name == "x.parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / name)
    else:
        (tmp_path / name).write_bytes(gzip.compress(lines) if name.endswith("gz") else lines)
    items = pinned_items(pinned(glob=f"{tmp_path}/*", text_columns=["prompt", "test"]))
    assert [item.name for item in items] == [f"bench/{name}#{number}" for number in range(5)]
    assert [item.text for item in items] == [f"{row['prompt']}\n{row['test']}" for row in ROWS]


def test_a_changed_set_is_refused_with_both_digests(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one text a file")
    right = pinned(glob=f"{tmp_path}/*.txt")
    assert [item.text for item in pinned_items(right)] == ["one text a file"]
    (tmp_path / "a.txt").write_text("another text")
    with pytest.raises(SourceError, match=rf"the config says {right.sha256}; if they are the right ones, set sha256"):
        pinned_items(right)


def test_the_held_out_prompts_of_the_task_families_are_a_set_too() -> None:
    items = pinned_items(pinned(kind="tasks", tasks=20))
    assert len(items) == 20 == len({item.text for item in items})
    from nanocode.tasks.registry import sample_tasks

    assert [item.text for item in items] == [task.prompt for task in sample_tasks("eval", 20, 0)]


def test_what_cannot_be_read_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"prompt": "p"}\nnot json\n')
    (tmp_path / "y.txt").write_bytes(b"caf\xe9")
    for glob, message in (
        (f"{tmp_path}/none*", "no file matches"),
        (f"{tmp_path}/x.jsonl", r"x\.jsonl line 1 has no text in text; set text_columns to some of: prompt"),
        (f"{tmp_path}/y.txt", r"cannot read y\.txt: .*utf-8"),
        ("s3://bucket/x.jsonl", "is not local; copy"),
    ):
        with pytest.raises(SourceError, match=rf"evaluation set 'bench'.*{message}"):
            pinned_items(evaluation_set(glob=glob))
    with pytest.raises(SourceError, match=r"x\.jsonl line 2 is not JSON"):
        pinned_items(evaluation_set(glob=f"{tmp_path}/x.jsonl", text_columns=["prompt"]))


def test_without_sets_there_is_nothing_to_compare_with() -> None:
    assert overlap_index(DecontaminationConfig()) is None


def test_all_sets_share_one_index(tmp_path: Path) -> None:
    text = " ".join(f"w{number}" for number in range(20))
    (tmp_path / "a.txt").write_text(text)
    sets = (pinned(glob=f"{tmp_path}/*.txt"), pinned(kind="tasks", tasks=5))
    index = overlap_index(DecontaminationConfig(sets=sets, min_words=1))
    assert index is not None and index.checked == 6
    assert [overlap.item for overlap in index.overlaps(text)] == ["bench/a.txt#0"]
