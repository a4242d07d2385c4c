from __future__ import annotations

import math
from typing import Any

import jax
import pytest
from flax import nnx

from nanocode.config import ConfigError, ModelConfig
from nanocode.model.depth import horizon, shape
from nanocode.model.gpt import GPT

VOCAB = 32_768

# nanochat's own figures for V = 32,768, context 2,048 and windows SSSL. N: matrices and output table, gates included.
NANOCHAT = {
    # depth: width, heads, N, all parameters, tokens, log2 batch, steps, learning-rate factor, Muon decay, FLOPs a token
    4: (256, 2, 11_534_384, 36_700_242, 138_412_608, 18, 528, 0.7071, 1.8899, 80_216_496),
    6: (384, 3, 23_199_852, 73_531_538, 278_398_224, 18, 1_062, 0.7071, 0.9396, 167_510_808),
    12: (768, 6, 110_100_912, 286_261_730, 1_321_210_944, 19, 2_520, 1.0, 0.2800, 759_696_048),
    20: (1_280, 10, 435_160_240, 896_533_746, 5_221_922_880, 20, 4_980, 1.4142, 0.1002, 2_886_212_784),
    24: (1_536, 12, 729_810_624, 1_384_122_122, 8_757_727_488, 20, 8_352, 1.4142, 0.0597, 4_775_225_616),
    26: (1_664, 13, 918_423_532, 1_681_786_938, 11_021_082_384, 20, 10_510, 1.4142, 0.0475, 5_991_051_288),
}


def model_config(**values: Any) -> ModelConfig:
    return ModelConfig.model_validate(values)


@pytest.mark.parametrize("depth", NANOCHAT)
def test_the_shape_of_nanochat_follows_from_the_depth(depth: int) -> None:
    width, heads, counted, parameters, *_, flops = NANOCHAT[depth]
    own = shape(model_config(depth=depth), VOCAB)
    assert (own.width, own.heads, own.kv_heads, own.head_width, own.layers) == (width, heads, heads, 128, depth)
    assert own.matrix_parameters + own.head_parameters == counted
    assert own.parameters == parameters
    assert own.flops_per_token == flops


@pytest.mark.parametrize("depth", NANOCHAT)
def test_the_horizon_of_nanochat_follows_from_the_depth(depth: int) -> None:
    _, _, _, _, tokens, log_batch, steps, factor, decay, _ = NANOCHAT[depth]
    own = horizon(model_config(depth=depth), VOCAB)
    assert (own.tokens, own.batch_tokens, own.steps) == (tokens, 2**log_batch, steps)
    assert own.lr_factor == pytest.approx(factor, abs=5e-5)
    assert own.muon_weight_decay == pytest.approx(decay, abs=5e-5)


@pytest.mark.parametrize("depth", range(1, 65))
def test_the_batch_of_nanochat_grows_with_the_horizon_to_the_power_of_0_383(depth: int) -> None:
    """Over depths where another exponent would round to another power of two; N = 12 L C^2 + V C and the gates."""

    def counted(layers: int) -> int:
        width = -(-64 * layers // 128) * 128
        return 12 * layers * width**2 + VOCAB * width + math.ceil(layers / 2) * (width // 128) * 12

    own = horizon(model_config(depth=depth), VOCAB)
    ratio = counted(depth) / counted(12)
    assert own.batch_tokens == 2 ** round(19 + 0.383 * math.log2(ratio))
    assert own.lr_factor == pytest.approx((own.batch_tokens / 2**19) ** 0.5)
    assert own.muon_weight_decay == pytest.approx(0.28 * own.lr_factor / ratio)


@pytest.mark.parametrize(
    ("pattern", "depth", "context", "windows"),
    [
        ("SSSL", 12, 2_048, [512, 512, 512, None] * 3),
        ("SSSL", 6, 2_048, [512, 512, 512, None, 512, None]),
        ("SSSL", 1, 2_048, [None]),
        ("S", 3, 1_000, [256, 256, None]),
        ("LS", 4, 16, [None, 128, None, None]),
        ("L", 2, 2_048, [None, None]),
    ],
)
def test_the_window_pattern_is_laid_over_the_layers_and_ends_long(
    pattern: str, depth: int, context: int, windows: list[int | None]
) -> None:
    config = model_config(window_pattern=pattern, depth=depth, context_tokens=context)
    assert list(shape(config, VOCAB).windows) == windows


def test_a_window_wider_than_the_context_costs_no_more_than_the_context() -> None:
    narrow, wide = (shape(model_config(depth=2, window_pattern=pattern, context_tokens=64), VOCAB) for pattern in "SL")
    assert narrow.windows == (128, None)
    assert narrow.flops_per_token == wide.flops_per_token


@pytest.mark.parametrize(("depth", "layers"), [(1, (0,)), (2, (1,)), (5, (0, 2, 4)), (6, (1, 3, 5))])
def test_every_second_layer_adds_value_embeddings_the_last_included(depth: int, layers: tuple[int, ...]) -> None:
    assert shape(model_config(depth=depth), VOCAB).value_layers == layers
    assert shape(model_config(depth=depth, value_embeddings=False), VOCAB).value_layers == ()


# depth: width, heads, context, parameters, steps
NANOCODE = {
    12: (768, 3, 1_024, 135_266_304, 1_033),
    20: (1_280, 5, 2_048, 477_102_080, 3_641),
    24: (2_048, 8, 4_096, 1_342_177_280, 10_241),
}


@pytest.mark.parametrize("depth", NANOCODE)
def test_the_sizes_of_nanocode_follow_from_the_depth(depth: int) -> None:
    width, heads, context, parameters, steps = NANOCODE[depth]
    config = model_config(recipe="nanocode", depth=depth, context_tokens=context)
    own, ahead = shape(config, VOCAB), horizon(config, VOCAB)
    assert (own.width, own.heads, own.head_width) == (width, heads, 256)
    assert own.parameters == parameters
    assert (ahead.tokens, ahead.batch_tokens, ahead.steps) == (8 * parameters, 2**20, steps)
    assert (ahead.lr_factor, ahead.muon_weight_decay) == (1.0, 0.0)


def test_training_flops_of_nanocode_d24_are_the_published_ones() -> None:
    config = model_config(recipe="nanocode", depth=24, context_tokens=4_096)
    assert shape(config, VOCAB).flops_per_token == 10_066_329_600


def test_training_flops_count_each_weight_six_times_and_attention_twelve() -> None:
    """nanochat's formula, by hand: two gates of 2 heads, smear's gate, three windows of 512 and one of 2,048."""
    own = shape(model_config(depth=4), VOCAB)
    weights = 4 * (4 * 256 * 256 + 2 * 256 * 1_024) + 2 * 2 * 12 + VOCAB * 256 + 24
    assert own.flops_per_token == 6 * weights + 12 * 256 * (3 * 512 + 2_048)


def test_shared_key_heads_save_matrices_tables_and_gates() -> None:
    full, shared = (shape(model_config(depth=12, kv_heads=kv_heads), VOCAB) for kv_heads in (None, 2))
    assert (shared.kv_heads, shared.kv_width) == (2, 256)
    assert full.matrix_parameters - shared.matrix_parameters == 12 * 2 * 768 * (768 - 256) + 6 * 12 * (6 - 2)
    assert full.value_embedding_parameters == 3 * shared.value_embedding_parameters
    assert full.embedding_parameters == shared.embedding_parameters


def test_tying_the_embeddings_saves_one_table() -> None:
    tied, apart = (shape(model_config(depth=4, tie_embeddings=tie), VOCAB) for tie in (True, False))
    assert apart.embedding_parameters == 2 * tied.embedding_parameters == 2 * VOCAB * 256
    assert apart.matrix_parameters == tied.matrix_parameters
    assert apart.flops_per_token == tied.flops_per_token


@pytest.mark.parametrize("recipe", ["nanochat", "nanocode"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_embeddings": True},
        {"kv_heads": 1},
        {"smear": False, "backout": True, "layer_scalars": True, "value_embeddings": False},
        {"smear": True, "backout": False, "layer_scalars": False, "value_embeddings": True},
    ],
)
def test_the_model_has_the_parameters_that_its_shape_counts(recipe: str, changes: dict[str, Any]) -> None:
    config = model_config(recipe=recipe, depth=3, width=32, heads=2, mlp_ratio=3, **changes)
    model = nnx.eval_shape(lambda: GPT(config, 300, nnx.Rngs(0)))
    counted = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
    assert counted == shape(config, 300).parameters


@pytest.mark.parametrize(("vocab", "padded"), [(300, 320), (320, 320), (321, 384), (32_768, 32_768)])
def test_the_vocabulary_is_padded_to_a_multiple_of_64(vocab: int, padded: int) -> None:
    assert shape(model_config(depth=2), vocab).vocab == padded


def test_what_the_config_sets_wins_over_the_depth() -> None:
    own = shape(model_config(depth=4, width=96, heads=3, mlp_ratio=2, context_tokens=64), 300)
    assert (own.width, own.heads, own.head_width, own.mlp_width, own.tokens) == (96, 3, 32, 192, 64)


@pytest.mark.parametrize(("width", "heads"), [(100, 3), (30, 10), (33, 1)])
def test_a_width_that_does_not_divide_into_even_heads_is_refused(width: int, heads: int) -> None:
    with pytest.raises(ConfigError, match=f"{width} does not divide into {heads} heads of even width"):
        shape(model_config(depth=2, width=width, heads=heads), 300)


def test_the_depth_12_reference_ignores_a_width_of_ones_own() -> None:
    """The scales compare with nanochat's d12, not with a d12 of the width that the config sets."""
    wide = horizon(model_config(depth=12, width=1_536, heads=12), VOCAB)
    plain = horizon(model_config(depth=12), VOCAB)
    assert plain.muon_weight_decay == pytest.approx(0.28)
    assert wide.muon_weight_decay < 0.28
    assert wide.batch_tokens > plain.batch_tokens


def test_a_width_below_the_channels_that_smear_reads_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.width must be at least 24 with smear, not 16"):
        shape(ModelConfig(depth=1, width=16, heads=1), 300)


def test_a_width_below_the_channels_that_a_value_gate_reads_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.width must be at least 12 with value_embeddings, not 8"):
        shape(ModelConfig(depth=1, width=8, heads=1, smear=False), 300)


def test_key_heads_that_do_not_divide_the_heads_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.kv_heads 4 does not divide model\.heads 6: take one of 1, 2, 3, 6"):
        shape(model_config(depth=12, kv_heads=4), VOCAB)


def test_the_depth_12_reference_ignores_key_heads_of_ones_own() -> None:
    """A d24 may share its key heads by a number that does not divide those of a d12."""
    shared = horizon(model_config(depth=24, kv_heads=4), VOCAB)
    assert shared.tokens < horizon(model_config(depth=24), VOCAB).tokens
