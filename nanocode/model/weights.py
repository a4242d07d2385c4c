"""A trained model as a folder: ``model.safetensors`` and ``model.json``.

safetensors, because the same weights give the same bytes and loading them runs no code; Orbax folders (random file
names, time stamps) serve for checkpoints inside a stage only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from nanocode.config import ModelConfig
from nanocode.model.gpt import GPT


class ModelError(ValueError):
    """A model folder that cannot be read."""


def save_model(model: GPT, folder: Path) -> None:
    """Write the weights (float32, one name a parameter: ``blocks.0.attention.query``) and the shape they need."""
    folder.mkdir(parents=True, exist_ok=True)
    flat = _dotted(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    save_file({name: np.asarray(array) for name, array in flat.items()}, folder / "model.safetensors")
    description = {"model": model.config.identity(), "vocab_size": model.vocab_size}
    (folder / "model.json").write_text(json.dumps(description, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def load_model(folder: Path) -> GPT:
    """Read what `save_model` wrote. Raises ModelError when a file is missing, damaged, of another shape or version."""
    try:
        description = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        config, vocab_size = _config(description["model"], folder), int(description["vocab_size"])
        arrays = load_file(folder / "model.safetensors")
        model = nnx.eval_shape(lambda: GPT(config, vocab_size, nnx.Rngs(0)))
    except ModelError:
        raise
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        fault = " ".join(str(error).split())
        raise ModelError(f"{folder} is not a whole model ({fault}): take it from its store again") from error
    graph, state = nnx.split(model)
    expected = _dotted(nnx.to_pure_dict(state))
    found = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    if found != {name: (leaf.shape, leaf.dtype) for name, leaf in expected.items()}:
        raise ModelError(f"{folder}: the weights do not have the shapes and types that model.json describes")
    nnx.replace_by_pure_dict(state, _nested({name: jax.numpy.asarray(array) for name, array in arrays.items()}))
    return nnx.merge(graph, state)


def _config(values: dict[str, Any], folder: Path) -> ModelConfig:
    """Nothing is taken from defaults, which may not be those under which the model was trained."""
    fields, told = ModelConfig.model_fields, set(values)
    needed = {name for name, field in fields.items() if field.is_required()}
    differing = (told - set(fields)) | (needed - told)
    if not differing:
        config = ModelConfig.model_validate(values)
        differing = set(config.identity()) - told
    if differing:
        raise ModelError(
            f"{folder} is a model of another version (model.json and this version differ in "
            f"{', '.join(sorted(differing))}): use the nanocode that trained it, or train it again"
        )
    return config


def _dotted(nested: dict[Any, Any]) -> dict[str, Any]:
    return {".".join(map(str, path)): leaf for path, leaf in flatten_dict(nested).items()}


def _nested(flat: dict[str, Any]) -> dict[Any, Any]:
    """Dotted names to nested dicts; list positions come back as integers, as Flax keys them."""
    keyed = {
        tuple(int(part) if part.isdigit() else part for part in name.split(".")): leaf for name, leaf in flat.items()
    }
    return unflatten_dict(keyed)
