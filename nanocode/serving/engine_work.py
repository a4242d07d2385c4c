"""The scheduler's work done by a decoding engine.

Where tools are offered, a grammar keeps calls to them. Where none are, nothing is forbidden: a model that may not call
when it means to says nonsense instead, so its reply ends there (`nanocode.serving.openai_format.Choice`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from nanocode.conversation import Message, render_prompt
from nanocode.inference.engine import Engine
from nanocode.inference.grammar import ToolGrammar
from nanocode.inference.live import LiveDecoder, Sampled
from nanocode.inference.sampling import Sampling
from nanocode.serving.scheduler import BATCH_ROWS, Tools, Work

# Batches are filled up to these sizes: an unseen one would make its requests wait for the compiler.
_ROWS = (1, 8, BATCH_ROWS)
_GRAMMARS = 32  # sets of tools that requests offered lately


class EngineWork:
    """Decodes for a `Scheduler`: `make_live` and `batch` are its arguments."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._grammar = lru_cache(_GRAMMARS)(self._make_grammar)

    def make_live(self) -> LiveWork:
        """A live decoder with a cache of its own."""
        return LiveWork(LiveDecoder(self._engine), self._grammar)

    def batch(self, work: Sequence[Work]) -> list[list[Sampled]]:
        """Whole replies to work of the same sampling and tools."""
        rows = next((size for size in _ROWS if size >= len(work)), len(work))
        padded = [*work, *[work[-1]] * (rows - len(work))]
        replies = self._engine.generate_scored(
            [each.prompt for each in padded],
            max_new_tokens=max(each.max_new_tokens for each in work),
            sampling=work[0].sampling,
            streams=[each.stream for each in padded],
            grammar=self._grammar(work[0].tools),
        )
        return [
            [Sampled(*pair) for pair in zip(reply.ids, reply.log_probabilities, strict=True)][: each.max_new_tokens]
            for each, reply in zip(work, replies, strict=False)
        ]

    def warm_up(self) -> None:
        """Compile what the first request would wait for."""
        prompt = tuple(render_prompt([Message("user", "hello")], self._engine.tokenizer))
        work = Work(prompt, 2, Sampling(), stream=0, live=False)
        self.batch([work])
        list(self.make_live().stream(work))

    def _make_grammar(self, tools: Tools) -> ToolGrammar | None:
        if not tools:
            return None
        return ToolGrammar(self._engine.tokenizer, {name: (required, optional) for name, required, optional in tools})


class LiveWork:
    """One live decoder of an engine."""

    def __init__(self, decoder: LiveDecoder, grammar: Callable[[Tools], ToolGrammar | None]) -> None:
        self._decoder, self._grammar = decoder, grammar

    def stream(self, work: Work) -> Iterator[Sampled]:
        """The tokens of the reply as they come."""
        return self._decoder.stream(
            work.prompt,
            max_new_tokens=work.max_new_tokens,
            sampling=work.sampling,
            grammar=self._grammar(work.tools),
        )
