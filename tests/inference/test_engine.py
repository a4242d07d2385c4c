from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nanocode.conversation import ConversationError, Message
from nanocode.inference import decoding
from nanocode.inference.engine import Engine
from nanocode.inference.overflow import ContextOverflow
from nanocode.inference.responder import ModelResponder
from nanocode.inference.sampling import Sampling
from nanocode.model.gpt import GPT
from nanocode.tokenizer import Tokenizer

CONTEXT = 96  # of the tiny model; prompts are padded to multiples of 64, so 64 | 65 is an edge
NEW = 6
MakeModel = Callable[..., GPT]


@pytest.fixture(scope="module")
def model(tiny_model: MakeModel) -> GPT:
    return tiny_model()


@pytest.fixture(scope="module")
def engine(model: GPT, tokenizer: Tokenizer) -> Engine:
    return Engine(model, tokenizer)


@pytest.fixture(scope="module")
def shallow(tiny_model: MakeModel, tokenizer: Tokenizer) -> Engine:
    """One layer, which compiles faster; rows meet in the batch, not in the depth."""
    return Engine(tiny_model(depth=1), tokenizer)


def test_a_second_engine_over_an_equal_architecture_compiles_nothing(
    tiny_model: MakeModel, tokenizer: Tokenizer
) -> None:
    for expected in (True, False):
        before = decoding.prefill._cache_size(), decoding.decode._cache_size()
        Engine(tiny_model(depth=1, rope_base=777.0), tokenizer).generate([prompt(5)], max_new_tokens=NEW)
        assert ((decoding.prefill._cache_size(), decoding.decode._cache_size()) != before) is expected


def prompt(tokens: int, seed: int = 0) -> list[int]:
    """Ordinary tokens, and no two prompts alike."""
    return np.random.default_rng([tokens, seed]).integers(0, 288, tokens).tolist()


@pytest.fixture(scope="module")
def uncached(model: GPT, tokenizer: Tokenizer) -> Callable[[Sequence[int]], list[int]]:
    return decode_without_cache(model, tokenizer)


def decode_without_cache(model: GPT, tokenizer: Tokenizer) -> Callable[[Sequence[int]], list[int]]:
    """Greedy decoding by running the whole model over the whole sequence for every token."""
    last = nnx.jit(lambda model, ids, at: model(ids)[0, at])
    context = model.shape.tokens

    def decode(start: Sequence[int]) -> list[int]:
        ids = list(start)
        while len(ids) < min(context, len(start) + NEW):
            row = np.full((1, context), tokenizer.pad)
            row[0, : len(ids)] = ids
            ids.append(int(np.argmax(last(model, row, len(ids) - 1))))
            if ids[-1] == tokenizer.special["<|assistant_end|>"]:
                break
        return ids[len(start) :]

    return decode


@pytest.mark.parametrize("tokens", [1, 2, 17, 57, 58, 62, 63, 64, 65, 80, 89, 90, 91, 95])
def test_greedy_with_a_cache_equals_greedy_without(engine: Engine, uncached: Callable, tokens: int) -> None:
    expected = uncached(prompt(tokens))
    assert engine.generate([prompt(tokens)], max_new_tokens=NEW) == [expected]
    assert len(expected) == min(NEW, CONTEXT - tokens)


@pytest.mark.parametrize(
    "changes",
    [
        {"backout": True, "value_embeddings": True, "layer_scalars": True, "kv_heads": 1, "window_pattern": "SSSL"},
        {"recipe": "nanocode", "smear": False, "kv_heads": 2, "window_pattern": "S"},
    ],
)
def test_every_option_decodes_as_it_trains(tiny_model: MakeModel, tokenizer: Tokenizer, changes: dict) -> None:
    """Rows of one batch on both sides of a window's edge: a token sees itself and 128 before it."""
    model = tiny_model(depth=3, heads=4, context_tokens=256, **changes)
    assert model.shape.windows == (128, 128, None)
    prompts = [prompt(tokens) for tokens in (3, 124, 128, 129, 180)]
    uncached = decode_without_cache(model, tokenizer)
    replies = Engine(model, tokenizer).generate(prompts, max_new_tokens=NEW)
    assert replies == [uncached(start) for start in prompts]
    assert len({token for reply in replies for token in reply}) > 5, "the model says the same whatever it reads"


def test_the_rows_beside_a_row_do_not_change_it(shallow: Engine) -> None:
    prompts = [prompt(5), prompt(40), prompt(23)]
    alone = [shallow.generate([row], max_new_tokens=NEW)[0] for row in prompts]
    assert shallow.generate(prompts, max_new_tokens=NEW) == alone
    assert shallow.generate(prompts[::-1], max_new_tokens=NEW) == alone[::-1]
    assert shallow.generate([prompts[1], prompt(80)], max_new_tokens=NEW)[0] == alone[1]
    assert len({tuple(row) for row in alone}) == 3


def test_a_long_reply_outgrows_its_cache_unnoticed(tiny_model: MakeModel, tokenizer: Tokenizer) -> None:
    """A draw depends on the position, so that a reply goes on from any of its tokens as it went."""
    engine = Engine(tiny_model(depth=1, context_tokens=400), tokenizer)
    (reply,) = engine.generate([prompt(5)], max_new_tokens=300, temperature=1.0, seed=1)
    assert len(reply) > 200, "the reply fits into the first cache"
    (rest,) = engine.generate([prompt(5) + reply[:-20]], max_new_tokens=20, temperature=1.0, seed=1)
    assert rest == reply[-20:]


def test_log_probabilities_come_with_the_same_tokens(shallow: Engine) -> None:
    """Against those of a prompt that already ends with the reply; tests of the live decoder know the true values."""
    prompts = [prompt(5), prompt(40)]
    scored = shallow.generate_scored(prompts, max_new_tokens=NEW, sampling=Sampling(1.0, seed=3))
    assert [one.ids for one in scored] == shallow.generate(prompts, max_new_tokens=NEW, temperature=1.0, seed=3)
    for start, one in zip(prompts, scored, strict=True):
        for at, value in enumerate(one.log_probabilities[: NEW - 1]):
            assert value < 0
            (again,) = shallow.generate_scored(
                [start + one.ids[:at]], max_new_tokens=1, sampling=Sampling(1.0, seed=3), streams=[prompts.index(start)]
            )
            assert again.log_probabilities[0] == pytest.approx(value, abs=1e-4)


def test_many_replies_to_one_prompt_are_those_of_the_prompt_alone(tiny_model: MakeModel, tokenizer: Tokenizer) -> None:
    engine = Engine(tiny_model(depth=1, heads=4, kv_heads=2), tokenizer)
    together = engine.generate([prompt(40)] * 3, max_new_tokens=NEW, temperature=1.0, streams=[5, 6, 7])
    apart = [engine.generate([prompt(40)], max_new_tokens=NEW, temperature=1.0, streams=[row])[0] for row in (5, 6, 7)]
    beside_another = engine.generate(
        [prompt(40), prompt(40), prompt(40, 1)], max_new_tokens=NEW, temperature=1.0, streams=[5, 6, 7]
    )
    assert together == apart
    assert beside_another[:2] == together[:2]
    assert beside_another[2] != together[2]


def test_a_sampled_row_depends_on_its_stream_and_seed_alone(shallow: Engine) -> None:
    prompts, streams = [prompt(5), prompt(40), prompt(23)], [7, 2, 9]

    def sample(rows: list[int], seed: int = 3) -> list[list[int]]:
        chosen = ([prompts[row] for row in rows], [streams[row] for row in rows])
        return shallow.generate(chosen[0], max_new_tokens=NEW, temperature=1.0, seed=seed, streams=chosen[1])

    together = sample([0, 1, 2])
    assert [sample([row])[0] for row in range(3)] == together
    assert sample([2, 0, 1]) == [together[2], together[0], together[1]]
    assert sample([0, 1, 2]) == together
    assert sample([0, 1, 2], seed=4) != together


def test_equal_prompts_on_different_streams_differ(shallow: Engine) -> None:
    replies = shallow.generate([prompt(5)] * 4, max_new_tokens=NEW, temperature=1.0, streams=[0, 1, 2, 1])
    assert replies[0] != replies[1]
    assert replies[1] == replies[3]
    assert replies[2] not in (replies[0], replies[1])
    assert shallow.generate([prompt(5)] * 3, max_new_tokens=NEW, temperature=1.0) == replies[:3]


# --- a model that is a table: what follows a token depends on that token alone


def table_model(tiny_model: MakeModel, tokenizer: Tokenizer, follows: dict[int, dict[int, float]]) -> GPT:
    """A GPT whose logits after token `a` are `follows[a]`, and 0 elsewhere. Up to 32 tokens can have followers.

    Blocks and smear are silent; each such token's embedding is a unit vector, and the output table reads it off.
    """
    model = tiny_model(softcap=1e6, depth=1)
    parameters = jax.tree.map(jnp.zeros_like, nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    embedding, unembedding = np.zeros((320, 32), np.float32), np.zeros((320, 32), np.float32)
    for channel, (token, logits) in enumerate(follows.items()):
        embedding[token, channel] = 1
        for follower, logit in logits.items():
            unembedding[follower, channel] = logit / 32**0.5  # the norm makes the unit vector sqrt(32) long
    parameters["embedding"], parameters["unembedding"] = jnp.asarray(embedding), jnp.asarray(unembedding)
    graph, state = nnx.split(model)
    nnx.replace_by_pure_dict(state, parameters)
    return nnx.merge(graph, state)


@pytest.fixture(scope="module")
def table(tiny_model: MakeModel, tokenizer: Tokenizer) -> Engine:
    """10 -> 11 -> 12 -> end of turn; 20 -> 20 for ever; 25 -> 26 or, e times less often, 27; 28 and 29 toss a coin."""
    special = tokenizer.special
    sure = 60.0
    follows = {
        10: {11: sure},
        11: {12: sure},
        12: {special["<|assistant_end|>"]: sure},
        20: {20: sure},
        25: {26: sure, 27: sure - 1},
        28: {28: sure, 29: sure},
        29: {28: sure, 29: sure},
        special["<|assistant_start|>"]: {tokenizer.encode("!")[0]: sure},
        tokenizer.encode("!")[0]: {tokenizer.encode('"')[0]: sure},
        tokenizer.encode('"')[0]: {special["<|assistant_end|>"]: sure},
    }
    return Engine(table_model(tiny_model, tokenizer, follows), tokenizer)


def test_a_reply_ends_with_the_turn_end(table: Engine, tokenizer: Tokenizer) -> None:
    end = tokenizer.special["<|assistant_end|>"]
    assert table.generate([[10], [12], [20]], max_new_tokens=NEW) == [[11, 12, end], [end], [20] * NEW]


def test_no_reply_is_longer_than_asked_for(table: Engine) -> None:
    assert table.generate([[10], [20]], max_new_tokens=2) == [[11, 12], [20, 20]]


def test_a_row_at_the_end_of_the_context_stops_and_leaves_the_others_alone(table: Engine, tokenizer: Tokenizer) -> None:
    end = tokenizer.special["<|assistant_end|>"]
    prompts = [[20] * 93, [20], [10], [20] * 95]
    expected = [[20] * 3, [20] * NEW, [11, 12, end], [20]]
    assert table.generate(prompts, max_new_tokens=NEW) == expected


def test_a_prompt_that_fills_the_context_overflows(table: Engine) -> None:
    for tokens in (CONTEXT, CONTEXT + 30):
        with pytest.raises(ContextOverflow, match=f"{tokens} tokens, the model's context {CONTEXT}"):
            table.generate([[10], [20] * tokens], max_new_tokens=NEW)


@pytest.mark.parametrize(("temperature", "share"), [(1.0, 1 / (1 + np.exp(-1))), (2.0, 1 / (1 + np.exp(-0.5)))])
def test_sampling_follows_the_probabilities_at_its_temperature(table: Engine, temperature: float, share: float) -> None:
    """512 draws: four standard deviations are below 0.09."""
    replies = table.generate([[25]] * 512, max_new_tokens=1, temperature=temperature, seed=1)
    assert {token for (token,) in replies} == {26, 27}
    assert np.mean([token == 26 for (token,) in replies]) == pytest.approx(share, abs=0.09)


def test_every_position_is_a_draw_of_its_own(table: Engine) -> None:
    replies = table.generate([[28]] * 4, max_new_tokens=NEW, temperature=1.0)
    assert {token for reply in replies for token in reply} == {28, 29}
    assert any(len(set(reply)) == 2 for reply in replies), "one draw was used for a whole reply"


def test_a_responder_answers_a_conversation(table: Engine) -> None:
    responder = ModelResponder(table, max_new_tokens=NEW)
    assert responder.respond([Message("user", "hello")]) == Message("assistant", '!"')


def test_a_responder_says_when_the_conversation_is_too_long(table: Engine) -> None:
    responder = ModelResponder(table, max_new_tokens=NEW)
    with pytest.raises(ContextOverflow):
        responder.respond([Message("user", "hello " * 60)])


def test_a_responder_refuses_output_that_is_no_message(tiny_model: MakeModel, tokenizer: Tokenizer) -> None:
    special = tokenizer.special
    start, call = special["<|assistant_start|>"], special["<|tool_call_start|>"]
    engine = Engine(table_model(tiny_model, tokenizer, {start: {call: 30.0}, call: {call: 30.0}}), tokenizer)
    responder = ModelResponder(engine, max_new_tokens=NEW)
    with pytest.raises(ConversationError, match="not closed"):
        responder.respond([Message("user", "hello")])


def test_no_prompts_give_no_replies(shallow: Engine) -> None:
    assert shallow.generate([], max_new_tokens=NEW) == []


def test_an_empty_prompt_and_no_room_for_a_token_are_refused(shallow: Engine) -> None:
    with pytest.raises(ValueError, match="at least one token"):
        shallow.generate([[5], []], max_new_tokens=NEW)
    with pytest.raises(ValueError, match="max_new_tokens must be at least 1"):
        shallow.generate([[5]], max_new_tokens=0)
