"""What a reply may be, token by token: text, and at most one well-formed call of a known tool.

    text* (<|tool_call_start|> NAME (<|tool_arg|> KEY <|tool_val|> text*)* <|tool_call_end|>)? <|assistant_end|>

NAME and KEY are spelled as the tokenizer spells them, a KEY is one of the tool's and not given yet, and a call ends
only when all that the tool requires is there. The automaton runs on the device beside the sampling. As in a lexer,
tokens that no state tells apart share a class, so that the table is (states, classes) and not (states, vocabulary).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np

from nanocode.inference.choosing import GrammarTables
from nanocode.tokenizer import Tokenizer

ToolSpecs = Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
"""A tool's name -> the arguments that a call must have, and those that it may have."""

_MOST_STATES = 1 << 15
_ORDINARY = -1  # stands for every ordinary token that a state does not name


class GrammarError(ValueError):
    """Tool specifications from which no grammar can be made."""


class ToolGrammar:
    """Compiled once a tokenizer and a set of tools. Raises GrammarError for empty or clashing names, and for so many
    arguments that their combinations do not fit a table.
    """

    def __init__(self, tokenizer: Tokenizer, tools: ToolSpecs) -> None:
        edges = _Automaton(tokenizer, tools).edges
        named = sorted({token for state in edges for token in state if token != _ORDINARY} | tokenizer.special_ids)
        classes = np.zeros(tokenizer.vocab_size, np.int32)  # 0: ordinary and named nowhere
        classes[named] = np.arange(1, len(named) + 1)
        transitions = np.full((len(edges), len(named) + 1), -1, np.int32)
        ordinary = np.array([True, *(token not in tokenizer.special_ids for token in named)])
        for state, row in enumerate(edges):
            if _ORDINARY in row:
                transitions[state, ordinary] = row[_ORDINARY]
            for token, target in row.items():
                if token != _ORDINARY:
                    transitions[state, classes[token]] = target
        self.tables = GrammarTables(jnp.asarray(transitions), jnp.asarray(classes))


@dataclass
class _Automaton:
    """Builds the states: one a token of each name and key, for each set of arguments already given."""

    tokenizer: Tokenizer
    tools: ToolSpecs
    edges: list[dict[int, int]] = field(default_factory=list)
    closed: int = field(init=False)  # the state behind a call
    _keys: dict[tuple[str, frozenset[str]], int] = field(default_factory=dict)
    _values: dict[tuple[str, frozenset[str]], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        special = self.tokenizer.special
        text, over, self.closed = self._state(), self._state(), self._state()
        self.edges[text] = {_ORDINARY: text, special["<|assistant_end|>"]: over}
        self.edges[over] = self.edges[self.closed] = {special["<|assistant_end|>"]: over}
        if self.tools:
            names = self._state()
            self.edges[text][special["<|tool_call_start|>"]] = names
            for tool, (required, optional) in self.tools.items():
                if len({*required, *optional}) < len(required) + len(optional):
                    raise GrammarError(f"an argument of {tool} is named twice")
                self._after_argument(self._spell(names, tool, "tool"), tool, frozenset())

    def _after_argument(self, state: int, tool: str, given: frozenset[str]) -> None:
        """What may follow a whole name, or the value of the last argument: another argument, or the call's end."""
        special = self.tokenizer.special
        required, optional = self.tools[tool]
        if given >= set(required):
            self.edges[state][special["<|tool_call_end|>"]] = self.closed
        if given < {*required, *optional}:
            self.edges[state][special["<|tool_arg|>"]] = self._key(tool, given)

    def _key(self, tool: str, given: frozenset[str]) -> int:
        """The state in which a key that is not in `given` begins."""
        if (tool, given) not in self._keys:
            state = self._keys[tool, given] = self._state()
            for key in itertools.chain(*self.tools[tool]):
                if key not in given:
                    spelled = self._spell(state, key, f"argument of {tool}")
                    self.edges[spelled][self.tokenizer.special["<|tool_val|>"]] = self._value(tool, given | {key})
        return self._keys[tool, given]

    def _value(self, tool: str, given: frozenset[str]) -> int:
        """The state inside a value, its own key in `given`."""
        if (tool, given) not in self._values:
            state = self._values[tool, given] = self._state()
            self.edges[state][_ORDINARY] = state
            self._after_argument(state, tool, given)
        return self._values[tool, given]

    def _spell(self, state: int, name: str, what: str) -> int:
        """The state behind the tokens of `name` from `state` on; names that begin alike share states."""
        tokens = self.tokenizer.encode(name)
        if not tokens:
            raise GrammarError(f"the name of a tool or argument is empty ({what})")
        for token in tokens:
            if token not in self.edges[state]:
                self.edges[state][token] = self._state()
            state = self.edges[state][token]
        return state

    def _state(self) -> int:
        if len(self.edges) >= _MOST_STATES:
            raise GrammarError(f"the tools' arguments combine to over {_MOST_STATES} states: leave some out")
        self.edges.append({})
        return len(self.edges) - 1
