"""From a MODEL on the command line to an engine: what is found, and what is refused in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from artifacts.releases import UnknownModel
from nanocode.cli.model_loading import find_model, load_named
from nanocode.tokenizer import Tokenizer, TokenizerError

SOME_TEXT = ["other words for another tokenizer, with other pairs in them"] * 3


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where compiled programs would be kept from now on: not in a test's process."""
    from nanocode.training import hardware

    folders: list[Path] = []
    monkeypatch.setattr(hardware, "keep_compiled", folders.append)
    return folders


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, tiny_model, tokenizer) -> Path:
    from nanocode.model.weights import save_model

    path = tmp_path_factory.mktemp("saved") / "tiny"
    save_model(tiny_model(), path)
    tokenizer.save(path / "tokenizer.json")
    return path


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "tiny"))


def test_a_folder_is_a_model_called_by_its_name(folder: Path, tokenizer, kept: list[Path]) -> None:
    loaded = load_named(str(folder), None)
    assert [path.name for path in kept] == ["xla"]
    assert (loaded.found.label, loaded.found.name, loaded.found.digest) == ("tiny", "tiny", "")
    assert loaded.engine.context_tokens == 96
    assert loaded.engine.tokenizer.vocab_size == tokenizer.vocab_size == loaded.model.vocab_size


def test_a_missing_tokenizer_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match=r"no tokenizer at .*tokenizer\.json"):
        load_named(str(folder), None)


def test_a_tokenizer_of_another_model_is_refused(folder: Path) -> None:
    from nanocode.model.weights import ModelError

    Tokenizer.train(SOME_TEXT, 280).save(folder / "tokenizer.json")
    with pytest.raises(ModelError, match="has 280 entries and the model 300: they are not of one release"):
        load_named(str(folder), None)


def test_a_model_of_an_earlier_version_is_refused(folder: Path) -> None:
    from nanocode.model.weights import ModelError

    description = json.loads((folder / "model.json").read_text())
    del description["model"]["mlp_ratio"]
    (folder / "model.json").write_text(json.dumps(description))
    with pytest.raises(ModelError, match=r"of another version .* differ in mlp_ratio"):
        load_named(str(folder), None)


@pytest.mark.parametrize("model", [None, "nano", "nano@3", "abcd1234"])
def test_a_store_without_releases_says_how_to_make_one(model: str | None, tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match="no model"):
        find_model(model, f"file:{tmp_path}/store")
