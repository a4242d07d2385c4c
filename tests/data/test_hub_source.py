"""The Hub kind through the real `datasets` library, over a data set that lies in a local folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanocode.config import HubSource
from nanocode.data.documents import SourceError
from nanocode.data.hub_source import hub_documents


def hub(dataset: Path, **changes: str) -> HubSource:
    values = {
        "name": "web",
        "register_as": "text",
        "kind": "hub",
        "dataset": str(dataset),
        "licence": "ODC-BY",
        **changes,
    }
    return HubSource.model_validate({"revision": "0" * 40, **values})


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "corpus"
    folder.mkdir()
    rows = [{"text": f"row {number}" if number else None, "url": "x"} for number in range(20)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_rows_stream_in_a_fixed_shuffled_order(dataset: Path) -> None:
    documents = list(hub_documents(hub(dataset)))
    texts = [document.content for document in documents]
    assert sorted(texts) == sorted(["", *(f"row {number}" for number in range(1, 20))])
    assert texts != sorted(texts, key=lambda text: int(str(text)[4:] or 0))
    assert documents == list(hub_documents(hub(dataset)))
    assert documents[3].origin == f"{dataset}/default/train@{'0' * 40}#3" == documents[3].group


def test_a_missing_column_split_or_dataset_is_one_clear_line(dataset: Path) -> None:
    with pytest.raises(SourceError, match="has no column 'body'; set text_column to one of: text, url"):
        list(hub_documents(hub(dataset, text_column="body")))
    for wrong in (hub(dataset, split="nowhere"), hub(dataset / "absent")):
        with pytest.raises(
            SourceError, match=r"cannot be read: .*; check the name, the revision and the network"
        ) as caught:
            list(hub_documents(wrong))
        assert "\n" not in str(caught.value)


def test_a_revision_is_required() -> None:
    with pytest.raises(ValueError, match="revision"):
        HubSource.model_validate({"name": "w", "register_as": "text", "kind": "hub", "dataset": "d", "licence": "x"})
