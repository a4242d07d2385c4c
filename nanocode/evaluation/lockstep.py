"""Many sessions, one model: each session runs in its own thread and blocks until all have asked, then one batch
answers.

The sessions are the agent's own (`nanocode.agent.session`), so an evaluated model meets exactly what a used one meets.
Which rows share a batch does not change what they say (`nanocode.inference.engine`), so thread timing cannot either.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from nanocode.conversation import Message, render_prompt
from nanocode.inference.cut import parse_reply
from nanocode.inference.engine import Engine
from nanocode.inference.overflow import ContextOverflow

Result = TypeVar("Result")


class _Rendezvous:
    """Collects one prompt from each running session; the last to arrive generates for all."""

    def __init__(self, generate: Callable[[dict[int, list[int]]], dict[int, list[int]]], sessions: int) -> None:
        self._generate, self._running = generate, sessions
        self._condition = threading.Condition()
        self._waiting: dict[int, list[int]] = {}
        self._answers: dict[int, list[int]] = {}
        self._failure: BaseException | None = None

    def ask(self, session: int, prompt: list[int]) -> list[int]:
        with self._condition:
            self._waiting[session] = prompt
            self._answer_if_all_wait()
            self._condition.wait_for(lambda: session in self._answers or self._failure is not None)
            if self._failure is not None:
                raise self._failure
            return self._answers.pop(session)

    def leave(self) -> None:
        with self._condition:
            self._running -= 1
            self._answer_if_all_wait()

    def _answer_if_all_wait(self) -> None:
        if not self._waiting or len(self._waiting) < self._running:
            return
        batch, self._waiting = self._waiting, {}
        try:
            self._answers.update(self._generate(batch))
        except BaseException as error:  # noqa: BLE001 - every waiting session must learn of it
            self._failure = error
        self._condition.notify_all()


class Seat:
    """One session's responder. `cut` counts its replies that were not over when their tokens were."""

    def __init__(self, rendezvous: _Rendezvous, session: int, engine: Engine) -> None:
        self._rendezvous, self._session, self._engine = rendezvous, session, engine
        self._end = engine.tokenizer.special["<|assistant_end|>"]
        self.cut = 0

    def respond(self, conversation: Sequence[Message]) -> Message:
        """The next message, a CutReply at the bounds.

        Raises ContextOverflow, or ConversationError when the output is no message.
        """
        prompt = render_prompt(conversation, self._engine.tokenizer)
        if len(prompt) >= self._engine.context_tokens:
            raise ContextOverflow(
                f"the conversation has {len(prompt)} tokens, the context {self._engine.context_tokens}"
            )
        ids = self._rendezvous.ask(self._session, prompt)
        self.cut += ids[-1:] != [self._end]
        return parse_reply(ids, self._engine.tokenizer)


def run_lockstep(
    engine: Engine,
    sessions: int,
    run: Callable[[int, Seat], Result],
    *,
    temperature: float,
    max_new_tokens: int,
    seed: int,
    first_stream: int = 0,
) -> list[Result]:
    """`run(index, responder)` for every index below `sessions`, all at once; results in order of index.

    Session `index` draws from the random stream `first_stream + index` of the seed.
    """

    def generate(batch: dict[int, list[int]]) -> dict[int, list[int]]:
        order = sorted(batch)
        replies = engine.generate(
            [batch[index] for index in order],
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=seed,
            streams=[first_stream + index for index in order],
        )
        return dict(zip(order, replies, strict=True))

    rendezvous = _Rendezvous(generate, sessions)

    def one(index: int) -> Result:
        try:
            return run(index, Seat(rendezvous, index, engine))
        finally:
            rendezvous.leave()

    if not sessions:
        return []
    with ThreadPoolExecutor(sessions, thread_name_prefix="session") as pool:
        return list(pool.map(one, range(sessions)))
