from __future__ import annotations

import math
from typing import Any

import jax
import pytest
from flax import nnx

from nanocode.config import ModelConfig
from nanocode.model.depth import horizon, shape
from nanocode.model.gpt import GPT

VOCAB = 32_768

# nanochat's own figures for V = 32,768 and context 2,048. Its N counts the gates of the value embeddings, 12 a head on
# every second layer, which this model does not have.
NANOCHAT = {
    # depth: width, heads, N, tokens, log2 batch, steps, learning-rate factor, Muon decay
    4: (256, 2, 11_534_384, 138_412_608, 18, 528, 0.7071, 1.8899),
    6: (384, 3, 23_199_852, 278_398_224, 18, 1_062, 0.7071, 0.9396),
    12: (768, 6, 110_100_912, 1_321_210_944, 19, 2_520, 1.0, 0.2800),
    20: (1_280, 10, 435_160_240, 5_221_922_880, 20, 4_980, 1.4142, 0.1002),
    24: (1_536, 12, 729_810_624, 8_757_727_488, 20, 8_352, 1.4142, 0.0597),
    26: (1_664, 13, 918_423_532, 11_021_082_384, 20, 10_510, 1.4142, 0.0475),
}


def model_config(**values: Any) -> ModelConfig:
    return ModelConfig.model_validate(values)


@pytest.mark.parametrize("depth", NANOCHAT)
def test_width_heads_and_parameters_of_nanochat_follow_from_the_depth(depth: int) -> None:
    width, heads, counted, *_ = NANOCHAT[depth]
    own = shape(model_config(depth=depth), VOCAB)
    gates = math.ceil(depth / 2) * heads * 12
    assert (own.width, own.heads, own.head_width, own.layers) == (width, heads, 128, depth)
    assert own.matrix_parameters + own.vocab * own.width == counted - gates


@pytest.mark.parametrize("depth", NANOCHAT)
def test_the_horizon_of_nanochat_follows_from_the_depth(depth: int) -> None:
    _, heads, _, tokens, log_batch, steps, factor, decay = NANOCHAT[depth]
    own = horizon(model_config(depth=depth), VOCAB)
    assert own.tokens == tokens - 12 * math.ceil(depth / 2) * heads * 12
    assert (own.batch_tokens, own.steps) == (2**log_batch, steps)
    assert own.lr_factor == pytest.approx(factor, abs=5e-5)
    assert own.muon_weight_decay == pytest.approx(decay, abs=5e-5)


@pytest.mark.parametrize("depth", range(1, 65))
def test_the_batch_of_nanochat_grows_with_the_horizon_to_the_power_of_0_383(depth: int) -> None:
    """Over depths where another exponent would round to another power of two; N = 12 L C^2 + V C, without gates."""

    def counted(layers: int) -> int:
        width = -(-64 * layers // 128) * 128
        return 12 * layers * width**2 + VOCAB * width

    own = horizon(model_config(depth=depth), VOCAB)
    ratio = counted(depth) / counted(12)
    assert own.batch_tokens == 2 ** round(19 + 0.383 * math.log2(ratio))
    assert own.lr_factor == pytest.approx((own.batch_tokens / 2**19) ** 0.5)
    assert own.muon_weight_decay == pytest.approx(0.28 * own.lr_factor / ratio)


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
    assert own.matrix_parameters + own.embedding_parameters == parameters
    assert (ahead.tokens, ahead.batch_tokens, ahead.steps) == (8 * parameters, 2**20, steps)
    assert (ahead.lr_factor, ahead.muon_weight_decay) == (1.0, 0.0)


def test_training_flops_of_nanocode_d24_are_the_published_ones() -> None:
    config = model_config(recipe="nanocode", depth=24, context_tokens=4_096)
    assert shape(config, VOCAB).flops_per_token == 10_066_329_600


def test_training_flops_count_each_weight_six_times_and_attention_twelve() -> None:
    """nanochat's formula at full windows: 6 (matrices + unembedding) + 12 width x context a layer."""
    own = shape(model_config(depth=4), VOCAB)
    matrices = 4 * (4 * 256 * 256 + 2 * 256 * 1_024)
    assert own.flops_per_token == 6 * (matrices + VOCAB * 256) + 4 * 12 * 256 * 2_048


def test_tying_the_embeddings_saves_one_table() -> None:
    tied, apart = (shape(model_config(depth=4, tie_embeddings=tie), VOCAB) for tie in (True, False))
    assert apart.embedding_parameters == 2 * tied.embedding_parameters == 2 * VOCAB * 256
    assert apart.matrix_parameters == tied.matrix_parameters
    assert apart.flops_per_token == tied.flops_per_token


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("smear", [False, True])
def test_the_model_has_the_parameters_that_its_shape_counts(tied: bool, smear: bool) -> None:
    config = model_config(depth=3, width=32, heads=2, mlp_ratio=3, tie_embeddings=tied, smear=smear)
    own = shape(config, 300)
    model = nnx.eval_shape(lambda: GPT(config, 300, nnx.Rngs(0)))
    counted = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
    assert counted == own.matrix_parameters + own.embedding_parameters + (25 if smear else 0)


@pytest.mark.parametrize(("vocab", "padded"), [(300, 320), (320, 320), (321, 384), (32_768, 32_768)])
def test_the_vocabulary_is_padded_to_a_multiple_of_64(vocab: int, padded: int) -> None:
    assert shape(model_config(depth=2), vocab).vocab == padded


def test_what_the_config_sets_wins_over_the_depth() -> None:
    own = shape(model_config(depth=4, width=96, heads=3, mlp_ratio=2, context_tokens=64), 300)
    assert (own.width, own.heads, own.head_width, own.mlp_width, own.tokens) == (96, 3, 32, 192, 64)


@pytest.mark.parametrize(("width", "heads"), [(100, 3), (30, 10), (33, 1)])
def test_a_width_that_does_not_divide_into_even_heads_is_refused(width: int, heads: int) -> None:
    with pytest.raises(ValueError, match=f"{width} does not divide into {heads} heads of even width"):
        shape(model_config(depth=2, width=width, heads=heads), 300)


def test_the_depth_12_reference_ignores_a_width_of_ones_own() -> None:
    """The scales compare with nanochat's d12, not with a d12 of the width that the config sets."""
    wide = horizon(model_config(depth=12, width=1_536, heads=12), VOCAB)
    plain = horizon(model_config(depth=12), VOCAB)
    assert plain.muon_weight_decay == pytest.approx(0.28)
    assert wide.muon_weight_decay < 0.28
    assert wide.batch_tokens > plain.batch_tokens


def test_a_width_below_the_channels_that_smear_reads_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.width must be at least 24 with smear, not 16"):
        shape(ModelConfig(depth=1, width=16, heads=1), 300)
