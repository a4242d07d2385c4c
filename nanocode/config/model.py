"""`[model]`: the shape of the GPT and how it is computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from nanocode.config.section import Section, not_identity


class ModelConfig(Section):
    """`depth` is the one dial: what is left out follows from it by the recipe's rules (`nanocode.model.depth`).

    The defaults below are nanochat's; `recipe = "nanocode"` takes the values of `_NANOCODE` where they differ.
    """

    recipe: Literal["nanochat", "nanocode"] = "nanochat"
    depth: int = Field(ge=1)
    width: int | None = Field(None, ge=8)
    heads: int | None = Field(None, ge=1)
    kv_heads: int | None = Field(None, ge=1, description="heads of keys and values, shared by groups; left out: heads")
    context_tokens: int = Field(2_048, ge=16)
    window_pattern: str = Field(
        "SSSL",
        pattern="^[SL]+$",
        description="repeated over the layers: L sees the whole context, S a quarter of it; the last layer is always L",
    )
    mask_documents: bool = Field(False, description="documents packed into one row cannot see each other")
    rope_base: float = Field(100_000.0, gt=1)
    qk_scale: float = Field(1.2, gt=0, description="factor on q and on k after QK-norm (nanochat: 1.2, nanocode: 1)")
    norm_epsilon: float = Field(1.1920929e-07, gt=0, description="nanochat: float32's own, for every activation type")
    mlp_ratio: int = Field(4, ge=1)
    softcap: float = Field(15.0, gt=0, description="logits = softcap * tanh(logits / softcap)")
    tie_embeddings: bool = False
    value_embeddings: bool = Field(
        True, description="add a gated embedding of the token to every second layer's values (nanochat)"
    )
    layer_scalars: bool = Field(True, description="learnt weights of the stream and of the embeddings at each layer")
    smear: bool = Field(True, description="mix each token's embedding with its predecessor's, gated (nanochat)")
    backout: bool = Field(True, description="take a learnt share of the middle of the stream off its end (nanochat)")
    embedding_stddev: float = Field(0.8, gt=0, description="at the start; left out with tied embeddings: 0.02")
    unembedding_stddev: float = Field(0.001, gt=0, description="of an untied output table, at the start")
    mlp_init_factor: float = Field(0.4, gt=0, description="of the MLP's first matrix, relative to attention's")
    dtype: Literal["float32", "bfloat16"] = Field("bfloat16", description="of activations; parameters are float32")
    attention: Literal["auto", "splash", "cudnn", "xla", "blockwise"] = not_identity(
        "auto", description="auto: by platform, type and shape (`nanocode.model.attention`)"
    )
    remat: Literal["none", "block", "matmuls"] = not_identity(
        "none", description="what a backward pass computes again: whole blocks, or all of them but matrix products"
    )
    scan_layers: bool = not_identity(
        False, description="compile one group of unlike layers and loop over the groups, not every layer by itself"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_from_recipe(cls, values: Any) -> Any:
        """Fields left out take the recipe's values, so that a validated config says everything."""
        if not isinstance(values, Mapping):
            return values
        filled = dict(_NANOCODE) if values.get("recipe") == "nanocode" else {}
        if values.get("tie_embeddings") is True:
            # A tied table is the output matrix too: small, the first loss is near ln V; it is normed on the way in.
            filled["embedding_stddev"] = 0.02
        return filled | dict(values)


_NANOCODE: dict[str, Any] = {
    "window_pattern": "L",
    "rope_base": 10_000.0,
    "qk_scale": 1.0,
    "norm_epsilon": 1e-6,
    "value_embeddings": False,
    "layer_scalars": False,
    "smear": False,
    "backout": False,
    "embedding_stddev": 1.0,
    "mlp_init_factor": 1.0,
}
