from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np
import pytest
from flax import nnx

from nanocode.inference import decoding, live
from nanocode.inference.engine import Engine, cache_slots
from nanocode.inference.grammar import ToolGrammar
from nanocode.inference.live import LiveDecoder, Sampled
from nanocode.inference.overflow import ContextOverflow
from nanocode.inference.sampling import Sampling
from nanocode.model.gpt import GPT
from nanocode.tokenizer import Tokenizer

MakeModel = Callable[..., GPT]
NEW = 5
HOT = Sampling(1.0, seed=3)


def ids(tokens: int, seed: int = 0) -> list[int]:
    """Ordinary tokens."""
    return np.random.default_rng([tokens, seed]).integers(0, 288, tokens).tolist()


@pytest.fixture(scope="module")
def engine(tiny_model: MakeModel, tokenizer: Tokenizer) -> Engine:
    return Engine(tiny_model(depth=1), tokenizer)


def said(sampled: Sequence[Sampled]) -> list[int]:
    return [one.id for one in sampled]


NANOCHAT = {"value_embeddings": True, "layer_scalars": True, "backout": True, "window_pattern": "SSSL"}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(NANOCHAT | {"kv_heads": 2}, id="all of nanochat's, grouped heads"),
        pytest.param({"kv_heads": 1, "tie_embeddings": True, "scan_layers": True}, id="a loop over layers, tied"),
        pytest.param({"smear": False, "window_pattern": "S"}, id="no smear", marks=pytest.mark.slow),
    ],
)
def test_log_probabilities_with_a_reused_cache_are_those_without_a_cache(
    tiny_model: MakeModel, tokenizer: Tokenizer, changes: dict
) -> None:
    """Turns that append, that cut the middle out and that begin anew, on both sides of a window's edge of 128, against
    the whole model over the whole sequence.
    """
    model = tiny_model(depth=3, heads=4, context_tokens=256, **changes)
    whole = nnx.jit(lambda model, row: jax.nn.log_softmax(model(row)[0], axis=-1))
    decoder = LiveDecoder(Engine(model, tokenizer))
    first, rest = ids(110), ids(30, 1)
    computed = []
    for prompt in (first, first + rest, first[:60] + rest, first + rest + ids(20, 2), ids(7), ids(1)):
        before = decoder.computed_tokens
        reply = list(decoder.stream(prompt, max_new_tokens=NEW, sampling=HOT))
        computed.append(decoder.computed_tokens - before)
        row = prompt + said(reply)
        padded = np.full((1, 256), tokenizer.pad)
        padded[0, : len(row)] = row
        expected = np.asarray(whole(model, padded))[np.arange(len(prompt), len(row)) - 1, said(reply)]
        np.testing.assert_allclose([one.log_probability for one in reply], expected, atol=2e-4)
    assert computed == [109, 29, 29, 99, 6, 0]


def test_a_live_reply_is_the_batch_reply_of_its_stream(engine: Engine) -> None:
    decoder, prompts = LiveDecoder(engine), [ids(40), ids(40) + ids(9, 1), ids(12)]
    batch = engine.generate_scored(prompts, max_new_tokens=NEW, sampling=HOT, streams=[len(one) for one in prompts])
    for prompt, expected in zip(prompts, batch, strict=True):
        reply = list(decoder.stream(prompt, max_new_tokens=NEW, sampling=HOT))
        assert said(reply) == expected.ids
        np.testing.assert_allclose([one.log_probability for one in reply], expected.log_probabilities, atol=1e-4)
    again = list(decoder.stream(prompts[0], max_new_tokens=NEW, sampling=HOT))
    assert said(again) == batch[0].ids
    other = list(decoder.stream(prompts[0], max_new_tokens=NEW, sampling=Sampling(1.0, seed=4)))
    assert said(other) != batch[0].ids


def test_what_the_model_said_itself_is_not_computed_again(engine: Engine) -> None:
    decoder, prompt = LiveDecoder(engine), ids(20)
    reply = said(list(decoder.stream(prompt, max_new_tokens=NEW, sampling=HOT)))
    before = decoder.computed_tokens
    list(decoder.stream(prompt + reply + ids(3, 1), max_new_tokens=1))
    assert decoder.computed_tokens - before == 3  # the reply's last token, and of three new ones the first two


def clock_with_ticks(seconds: float) -> Callable[[], float]:
    ticks: Iterator[float] = itertools.count(0.0, seconds)  # type: ignore[arg-type]
    return lambda: next(ticks)


@pytest.mark.parametrize("seconds", [1e-9, 0.013, 5.0])
def test_how_long_a_token_takes_decides_the_chunks_and_no_token(
    engine: Engine, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    decode = engine.decode
    monkeypatch.setattr(engine, "decode", lambda *args, **named: asked.append(args[-1]) or decode(*args, **named))
    reply = list(LiveDecoder(engine, clock_with_ticks(seconds)).stream(ids(11), max_new_tokens=20, sampling=HOT))
    assert said(reply) == engine.generate([ids(11)], max_new_tokens=20, temperature=1.0, seed=3, streams=[11])[0]
    live_calls = asked[:-1]  # the last was the engine's own
    if seconds == 5.0:
        assert set(live_calls) == {1}
    else:
        assert live_calls[0] == 1
        assert max(live_calls) > 1


def test_a_reply_that_is_closed_early_leaves_the_decoder_usable(engine: Engine) -> None:
    decoder = LiveDecoder(engine)
    reply = decoder.stream(ids(30), max_new_tokens=40, sampling=HOT)
    first = next(reply)
    reply.close()
    again = list(decoder.stream(ids(30), max_new_tokens=40, sampling=HOT))
    assert again[0] == first
    assert said(again) == engine.generate([ids(30)], max_new_tokens=40, temperature=1.0, seed=3, streams=[30])[0]


def test_an_interrupted_step_costs_the_cache_and_nothing_else(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = LiveDecoder(engine)
    expected = list(decoder.stream(ids(30), max_new_tokens=NEW))

    def interrupted(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    for module, name in ((live, "extend"), (engine, "decode")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                list(decoder.stream(ids(34, 1), max_new_tokens=NEW))
        assert list(decoder.stream(ids(30), max_new_tokens=NEW)) == expected


def test_a_reply_that_another_has_overtaken_says_so(engine: Engine) -> None:
    decoder = LiveDecoder(engine, clock_with_ticks(5.0))
    first = decoder.stream(ids(30), max_new_tokens=NEW, sampling=HOT)
    next(first)
    list(decoder.stream(ids(20), max_new_tokens=1))
    with pytest.raises(RuntimeError, match="begun another reply"):
        next(first)


def test_a_conversation_of_many_turns_compiles_a_bounded_number_of_programs(
    tiny_model: MakeModel, tokenizer: Tokenizer
) -> None:
    """Every prompt length up to the context. Cache sizes are those of `cache_slots`, times two sizes of prompt."""
    decoder = LiveDecoder(Engine(tiny_model(depth=1, rope_base=555.0, context_tokens=100), tokenizer))
    before = decoding.extend._cache_size(), decoding.decode._cache_size()
    long = ids(99)
    for length in range(1, 99, 5):
        list(decoder.stream(long[:length], max_new_tokens=1))
    sizes = len({cache_slots(slots) for slots in range(1, 100 + 128)})
    assert decoding.decode._cache_size() - before[1] <= sizes
    assert decoding.extend._cache_size() - before[0] <= 2 * sizes


def test_a_reply_is_cut_at_the_end_of_the_context_and_a_full_prompt_overflows(engine: Engine) -> None:
    decoder = LiveDecoder(engine)
    assert len(list(decoder.stream(ids(93), max_new_tokens=40, sampling=HOT))) == 3
    with pytest.raises(ContextOverflow, match="96 tokens, the model's context 96"):
        decoder.stream(ids(96), max_new_tokens=1)
    with pytest.raises(ValueError, match="at least one token"):
        decoder.stream([], max_new_tokens=1)
    with pytest.raises(ValueError, match="max_new_tokens must be at least 1"):
        decoder.stream(ids(3), max_new_tokens=0)


def test_a_live_reply_keeps_to_the_grammar(engine: Engine, tokenizer: Tokenizer) -> None:
    stop = ToolGrammar(tokenizer, {})
    sampling = Sampling(5.0, seed=1)
    free = list(LiveDecoder(engine).stream(ids(9), max_new_tokens=60, sampling=sampling))
    kept = list(LiveDecoder(engine).stream(ids(9), max_new_tokens=60, sampling=sampling, grammar=stop))
    assert set(said(free)[:-1]) & tokenizer.special_ids, "the model says no control token anyway"
    assert not set(said(kept)[:-1]) & tokenizer.special_ids
    assert said(kept)[-1] not in tokenizer.special_ids - {tokenizer.special["<|assistant_end|>"]}
