from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.conversation import ConversationError, Message, ToolCall, assistant_ids, parse_assistant
from nanocode.inference.choosing import GrammarTables, allowed, following
from nanocode.inference.engine import Engine
from nanocode.inference.grammar import GrammarError, ToolGrammar, ToolSpecs
from nanocode.model.gpt import GPT
from nanocode.model.parameters import parameters_of, with_parameters
from nanocode.tokenizer import Tokenizer

TOOLS: ToolSpecs = {  # names and keys that begin alike, one tool without arguments
    "Read": (("file_path",), ("offset", "off")),
    "ReadAll": ((), ("file", "file_path")),
    "Edit": (("file_path", "new_string"), ("old_string",)),
    "Stop": ((), ()),
}


@pytest.fixture(scope="module")
def grammar(tokenizer: Tokenizer) -> ToolGrammar:
    return ToolGrammar(tokenizer, TOOLS)


class Walker:
    """The automaton on the host: which ids may follow, one reply at a time."""

    def __init__(self, tables: GrammarTables) -> None:
        self.transitions, self.classes = np.asarray(tables.transitions), np.asarray(tables.classes)
        self.state = 0

    def choices(self) -> list[int]:
        return np.flatnonzero(self.transitions[self.state][self.classes] >= 0).tolist()

    def take(self, token: int) -> bool:
        target = int(self.transitions[self.state, self.classes[token]])
        self.state = max(target, 0)
        return target >= 0


def takes(grammar: ToolGrammar, ids: list[int]) -> bool:
    walker = Walker(grammar.tables)
    return all(walker.take(token) for token in ids)


def check_known(message: Message) -> None:
    if message.tool_call is not None:
        required, optional = TOOLS[message.tool_call.name]
        assert set(required) <= set(message.tool_call.arguments) <= {*required, *optional}


@given(seed=st.integers(0, 2**32 - 1), eager=st.floats(0.05, 0.95))
def test_whatever_is_drawn_parses_and_names_a_known_tool_and_its_arguments(
    grammar: ToolGrammar, tokenizer: Tokenizer, seed: int, eager: float
) -> None:
    """Draws among the allowed ids alone, control tokens with the weight `eager`, until the reply is over."""
    rng, walker, ids = np.random.default_rng(seed), Walker(grammar.tables), [-1]
    while ids[-1] != tokenizer.special["<|assistant_end|>"]:
        choices = walker.choices()
        special = [token for token in choices if token in tokenizer.special_ids]
        ids.append(int(rng.choice(special if special and rng.random() < eager else choices)))
        assert walker.take(ids[-1])
    check_known(parse_assistant(ids[1:], tokenizer))


@given(
    text=st.text(max_size=12),
    values=st.lists(st.text(max_size=12), min_size=3, max_size=3),
    keys=st.permutations(("file_path", "new_string", "old_string")),
    given_keys=st.integers(0, 3),
)
def test_it_takes_every_call_that_has_what_the_tool_requires_and_no_other(
    grammar: ToolGrammar, tokenizer: Tokenizer, text: str, values: list[str], keys: list[str], given_keys: int
) -> None:
    arguments = dict(zip(keys[:given_keys], values, strict=False))
    ids = assistant_ids(Message("assistant", text, ToolCall("Edit", arguments)), tokenizer)
    assert takes(grammar, ids) is ({"file_path", "new_string"} <= set(arguments))


def test_it_takes_text_alone_and_a_call_without_arguments(grammar: ToolGrammar, tokenizer: Tokenizer) -> None:
    assert takes(grammar, assistant_ids(Message("assistant", "Done. <|tool_call_start|>"), tokenizer))
    assert takes(grammar, assistant_ids(Message("assistant", "", ToolCall("Stop")), tokenizer))
    assert takes(grammar, assistant_ids(Message("assistant", "", ToolCall("ReadAll", {"file": "a"})), tokenizer))


@pytest.mark.parametrize(
    "call",
    [
        ToolCall("Write", {"file_path": "a"}),
        ToolCall("Rea", {"file_path": "a"}),
        ToolCall("Stop", {"file_path": "a"}),
        ToolCall("Read", {"file_path": "a", "new_string": "b"}),
        ToolCall("Read", {"file_path": "a", "offse": "1"}),
        ToolCall("Read", {}),
    ],
)
def test_it_takes_no_unknown_tool_or_argument(grammar: ToolGrammar, tokenizer: Tokenizer, call: ToolCall) -> None:
    assert not takes(grammar, assistant_ids(Message("assistant", "", call), tokenizer))


def test_an_argument_cannot_be_given_twice_and_nothing_follows_a_call(
    grammar: ToolGrammar, tokenizer: Tokenizer
) -> None:
    special = tokenizer.special
    argument = [special["<|tool_arg|>"], *tokenizer.encode("file"), special["<|tool_val|>"]]
    call = [special["<|tool_call_start|>"], *tokenizer.encode("ReadAll"), *argument]
    assert takes(grammar, [*call, special["<|tool_call_end|>"], special["<|assistant_end|>"]])
    assert not takes(grammar, [*call, *argument])
    assert not takes(grammar, [*call, special["<|tool_call_end|>"], *tokenizer.encode("x")])


@pytest.mark.parametrize("stray", ["<|bos|>", "<|user_start|>", "<|tool_val|>", "<|tool_result_start|>", "<|pad|>"])
def test_no_control_token_strays_into_text_or_a_value(grammar: ToolGrammar, tokenizer: Tokenizer, stray: str) -> None:
    special = tokenizer.special
    in_value = assistant_ids(Message("assistant", "", ToolCall("Read", {"file_path": "a"})), tokenizer)[:-2]
    for start in ([], tokenizer.encode("hello"), in_value):
        assert takes(grammar, start)
        assert not takes(grammar, [*start, special[stray]])


def test_without_tools_there_is_no_call(tokenizer: Tokenizer) -> None:
    bare = ToolGrammar(tokenizer, {})
    assert takes(bare, assistant_ids(Message("assistant", "hello"), tokenizer))
    assert not takes(bare, [tokenizer.special["<|tool_call_start|>"]])


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ({"": ((), ())}, "is empty"),
        ({"Read": (("",), ())}, "is empty .argument of Read"),
        ({"Read": (("path",), ("path",))}, "an argument of Read is named twice"),
        ({"Read": ((), tuple(f"argument{number}" for number in range(20)))}, "leave some out"),
    ],
)
def test_tools_from_which_no_grammar_can_be_made_are_refused(
    tokenizer: Tokenizer, tools: ToolSpecs, message: str
) -> None:
    with pytest.raises(GrammarError, match=message):
        ToolGrammar(tokenizer, tools)


def test_the_device_follows_the_same_table(grammar: ToolGrammar, tokenizer: Tokenizer) -> None:
    ids = assistant_ids(Message("assistant", "x", ToolCall("Read", {"file_path": "a"})), tokenizer)
    walker, states = Walker(grammar.tables), jnp.zeros(2, jnp.int32)
    for token in ids:
        mask = np.asarray(allowed(grammar.tables, states))
        assert np.flatnonzero(mask[0]).tolist() == np.flatnonzero(mask[1]).tolist() == walker.choices()
        states = following(grammar.tables, states, jnp.array([token, token]))
        assert walker.take(token)


def test_a_batch_of_random_replies_is_well_formed(
    grammar: ToolGrammar, tokenizer: Tokenizer, tiny_model: Callable[..., GPT]
) -> None:
    """A model that likes control tokens, and knows nothing of their order. What is cut short is cut inside a call."""
    model = tiny_model(depth=1, softcap=1e6)
    parameters = jax.tree.map(jnp.zeros_like, parameters_of(model))
    parameters["embedding"] = jnp.ones_like(parameters["embedding"])
    likes = np.zeros_like(np.asarray(parameters["unembedding"]))
    likes[sorted(tokenizer.special_ids), :] = 5 / 32
    parameters["unembedding"] = jnp.asarray(likes)
    engine = Engine(with_parameters(model, parameters), tokenizer)
    replies = engine.generate([[5]] * 64, max_new_tokens=60, temperature=1.0, seed=2, grammar=grammar)
    whole = [reply for reply in replies if reply[-1] == tokenizer.special["<|assistant_end|>"]]
    messages = [parse_assistant(reply, tokenizer) for reply in whole]
    for message in messages:
        check_known(message)
    assert len({message.tool_call.name for message in messages if message.tool_call}) >= 3
    assert all(takes(grammar, reply) for reply in replies)
    free = engine.generate([[5]] * 16, max_new_tokens=60, temperature=1.0, seed=2)
    with pytest.raises(ConversationError):
        for reply in free:
            parse_assistant(reply, tokenizer)
