from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from nanocode.model.gpt import GPT
from nanocode.model.weights import ModelError, load_model, save_model

MakeModel = Callable[..., GPT]
FILES = ("model.json", "model.safetensors")


def leaves(model: GPT) -> list[jax.Array]:
    return jax.tree.leaves(nnx.to_pure_dict(nnx.state(model, nnx.Param)))


@pytest.fixture
def saved(tiny_model: MakeModel, tmp_path: Path) -> Path:
    save_model(tiny_model(), tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": True, "smear": False, "recipe": "nanocode"}])
def test_a_loaded_model_is_the_saved_one_bit_for_bit(tiny_model: MakeModel, tmp_path: Path, changes: dict) -> None:
    model = tiny_model(depth=11, **changes)  # eleven blocks: 10 sorts before 2 as text
    save_model(model, tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.config == model.config
    assert loaded.vocab_size == model.vocab_size
    for before, after in zip(leaves(model), leaves(loaded), strict=True):
        np.testing.assert_array_equal(before, after)


def test_a_loaded_model_computes_the_same_logits(tiny_model: MakeModel, saved: Path) -> None:
    forward = nnx.jit(lambda model, ids: model(ids))
    ids = np.arange(24).reshape(2, 12)
    np.testing.assert_array_equal(forward(load_model(saved), ids), forward(tiny_model(), ids))


def test_equal_weights_give_identical_files(tiny_model: MakeModel, saved: Path, tmp_path: Path) -> None:
    save_model(tiny_model(), tmp_path / "again")
    save_model(load_model(saved), tmp_path / "through")
    for name in FILES:
        assert (saved / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
        assert (saved / name).read_bytes() == (tmp_path / "through" / name).read_bytes()


def test_other_weights_give_another_file(tiny_model: MakeModel, saved: Path, tmp_path: Path) -> None:
    save_model(tiny_model(seed=1), tmp_path / "other")
    assert (saved / FILES[1]).read_bytes() != (tmp_path / "other" / FILES[1]).read_bytes()


def test_names_in_the_file_say_where_a_weight_belongs(saved: Path) -> None:
    arrays = load_file(saved / "model.safetensors")
    assert arrays["blocks.1.attention.query"].shape == (32, 32)
    assert arrays["blocks.0.mlp.up"].shape == (32, 128)
    assert arrays["embedding"].shape == (320, 32)
    assert {array.dtype for array in arrays.values()} == {np.dtype("float32")}
    assert json.loads((saved / "model.json").read_text())["vocab_size"] == 300


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(ModelError, match=f"{saved} is not a whole model"):
        load_model(saved)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("keep", [0, 20])
def test_a_torn_file_is_refused(saved: Path, name: str, keep: int) -> None:
    (saved / name).write_bytes((saved / name).read_bytes()[:keep])
    with pytest.raises(ModelError, match=f"{saved} is not a whole model"):
        load_model(saved)


def rewrite(folder: Path, **changes: object) -> None:
    description = json.loads((folder / "model.json").read_text())
    description["model"].update(changes)
    (folder / "model.json").write_text(json.dumps(description))


@pytest.mark.parametrize(
    "changes", [{"width": 64}, {"depth": 3}, {"depth": 1}, {"tie_embeddings": True}, {"smear": False}]
)
def test_weights_of_another_shape_are_refused(saved: Path, changes: dict) -> None:
    rewrite(saved, **changes)
    with pytest.raises(ModelError, match="the shapes and types that model"):
        load_model(saved)


def test_a_description_with_an_unknown_key_is_refused(saved: Path) -> None:
    rewrite(saved, widht=32)
    with pytest.raises(ModelError, match="widht"):
        load_model(saved)


@pytest.mark.parametrize("drop", ["model", "vocab_size"])
def test_a_description_without_a_part_is_refused(saved: Path, drop: str) -> None:
    description = json.loads((saved / "model.json").read_text())
    del description[drop]
    (saved / "model.json").write_text(json.dumps(description))
    with pytest.raises(ModelError, match=drop):
        load_model(saved)


def test_a_surplus_weight_is_refused(saved: Path) -> None:
    arrays = load_file(saved / "model.safetensors")
    save_file({**arrays, "blocks.0.attention.bias": np.zeros(3, np.float32)}, saved / "model.safetensors")
    with pytest.raises(ModelError, match="shapes"):
        load_model(saved)


@pytest.mark.parametrize("text", ["[]", "3", "null", '{"model": {"depth": 2}, "vocab_size": null}'])
def test_a_description_of_another_type_is_refused_in_one_line(saved: Path, text: str) -> None:
    (saved / "model.json").write_text(text)
    with pytest.raises(ModelError) as caught:
        load_model(saved)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32])
def test_weights_of_another_type_are_refused(saved: Path, dtype: type) -> None:
    arrays = load_file(saved / "model.safetensors")
    save_file({name: array.astype(dtype) for name, array in arrays.items()}, saved / "model.safetensors")
    with pytest.raises(ModelError, match="shapes and types"):
        load_model(saved)


def test_heads_that_do_not_divide_the_width_are_a_model_error(saved: Path) -> None:
    description = json.loads((saved / "model.json").read_text())
    description["model"]["heads"] = 3
    (saved / "model.json").write_text(json.dumps(description))
    with pytest.raises(ModelError, match="does not divide"):
        load_model(saved)


def test_a_description_that_leaves_a_switch_out_is_refused(saved: Path) -> None:
    """The default of today need not be what the model was trained with: a window has no weights to betray it."""
    description = json.loads((saved / "model.json").read_text())
    del description["model"]["window_pattern"]
    (saved / "model.json").write_text(json.dumps(description))
    with pytest.raises(ModelError, match=r"differ in window_pattern.*train it again"):
        load_model(saved)


def test_how_a_model_is_run_is_not_written_down(tiny_model: MakeModel, saved: Path, tmp_path: Path) -> None:
    save_model(tiny_model(remat="block", attention="xla"), tmp_path / "other")
    for name in FILES:
        assert (saved / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
