"""One rollout: draft with real tools, then critique and revise the words until the constitution is kept.

The generator works on the task turn by turn and its calls are executed; or the draft is a conversation that there is
already, with executed calls. Critic and reviser then deal with the texts alone: calls and results of the accepted
conversation are those of the draft, byte for byte. A draft or a revision of a task counts only if the task's own check
passes on it, a revision of another conversation only with the code blocks that the draft shows.
"""

from __future__ import annotations

import asyncio
import functools
import re
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from nanocode.constitution import prompts
from nanocode.constitution.asking import Asking, ask_critic, ask_until_parsed
from nanocode.constitution.clients import Clients
from nanocode.constitution.endpoint import Completion, ReplyError
from nanocode.constitution.parsing import parse_texts
from nanocode.constitution.rules import BEST_SCORE, critique
from nanocode.constitution.soul import Soul
from nanocode.conversation import Conversation, Message
from nanocode.tasks.situation import TaskTools
from nanocode.tasks.task import Task, Verdict, check, prepare

REVISER_SCHEMA_NAME = "revision"
_CODE_BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


class Subject(Protocol):
    """What a conversation is about: a task, or a row of an instruction set."""

    @property
    def id(self) -> str:
        """Names it among all others."""
        ...

    @property
    def family(self) -> str:
        """What it is counted under."""
        ...

    @property
    def variant(self) -> str:
        """Its kind within the family."""
        ...


@dataclass(frozen=True)
class Given:
    """A conversation that there is already. `provenance`: where it comes from, kept with what is made of it."""

    id: str
    family: str
    variant: str
    messages: tuple[Message, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Revising:
    """What bounds critique and revision."""

    accept_score: int
    max_revisions: int


@dataclass(frozen=True)
class Settings(Revising):
    """What bounds a rollout. `scratch` is where workspaces are made (None: the system's temporary folder)."""

    max_turns: int
    make_tools: Callable[[Task, Path], TaskTools]
    scratch: Path | None = None


@dataclass(frozen=True)
class Judgement:
    """Both critics on one conversation: the endpoint's score (None: unscored) and the rules' score."""

    score: int | None
    violations: tuple[str, ...]
    text: str
    rule_score: int

    def accepted(self, accept_score: int) -> bool:
        """Both must be content: the endpoint by its score, the rules entirely."""
        return self.score is not None and self.score >= accept_score and self.rule_score == BEST_SCORE


@dataclass(frozen=True)
class Rollout:
    """The outcome for one subject. ``judgements[0]`` is of the draft, the others of the revisions in order.

    ``accepted`` is None when no version was accepted; ``dropped`` then says why, in words that can be counted.
    """

    task: Subject
    draft: tuple[Message, ...]
    accepted: tuple[Message, ...] | None
    judgements: tuple[Judgement, ...]
    verdict: Verdict | None
    dropped: str | None
    refused_revisions: int
    keys: tuple[str, ...]
    models: tuple[tuple[str, str], ...]

    @property
    def draft_accepted(self) -> bool:
        """Whether the draft needed no revision."""
        return self.accepted is not None and self.accepted == self.draft


class _Dropped(Exception):
    """The rollout ends here; the message is the reason under which it is counted."""


async def roll_out(task: Task, clients: Clients, soul: Soul, settings: Settings, seed: int) -> Rollout:
    """Run one task to its end. Raises EndpointError when an endpoint gives no answer; everything else is an outcome."""
    run = _Run(task, [Message("user", task.prompt)], clients, soul, settings, seed)
    with tempfile.TemporaryDirectory(prefix="nanocode-rollout-", dir=settings.scratch) as folder:

        async def work() -> None:
            await run.make_draft(task, Path(folder), settings)
            await run.revise_until_accepted(lambda revised: _failed(check(task, revised, Path(folder))))

        return await run.ended(work())


def _failed(verdict: Verdict) -> str | None:
    return None if verdict.success else "the revision failed the task"


async def restyle(given: Given, clients: Clients, soul: Soul, revising: Revising, seed: int) -> Rollout:
    """Take a conversation through critique and revision as it is. Raises as `roll_out`."""
    run = _Run(given, list(given.messages), clients, soul, revising, seed)

    def lost(revised: list[Message]) -> str | None:
        return None if _code_blocks(revised) == _code_blocks(given.messages) else "the revision changed shown code"

    return await run.ended(run.revise_until_accepted(lost))


def _code_blocks(conversation: Conversation) -> list[list[str]]:
    """The fenced code that the assistant shows, by message."""
    return [_CODE_BLOCK.findall(message.content) for message in conversation if message.role == "assistant"]


class _Run:
    """The state of one rollout while it runs."""

    def __init__(
        self, task: Subject, draft: list[Message], clients: Clients, soul: Soul, revising: Revising, seed: int
    ) -> None:
        self.task, self.draft = task, draft
        self.clients, self.soul, self.revising, self.seed = clients, soul, revising, seed
        self.accepted: list[Message] | None = None
        self.judgements: list[Judgement] = []
        self.verdict: Verdict | None = None
        self.refused_revisions = 0
        self.keys: list[str] = []
        self.models: dict[str, str] = {}

    def outcome(self, dropped: str | None) -> Rollout:
        return Rollout(
            task=self.task,
            draft=tuple(self.draft),
            accepted=None if self.accepted is None else tuple(self.accepted),
            judgements=tuple(self.judgements),
            verdict=self.verdict,
            dropped=dropped,
            refused_revisions=self.refused_revisions,
            keys=tuple(self.keys),
            models=tuple(sorted(self.models.items())),
        )

    async def ended(self, work: Awaitable[None]) -> Rollout:
        """The outcome once `work` is done, however it ends."""
        try:
            await work
        except _Dropped as reason:
            return self.outcome(str(reason))
        except ReplyError:
            return self.outcome("a reply was no assistant message")
        return self.outcome(None if self.accepted is not None else "no version was accepted")

    async def make_draft(self, task: Task, workspace: Path, settings: Settings) -> None:
        """Let the generator work until it answers without a call; the draft must pass the task's check."""
        prepare(task, workspace)
        toolbox = settings.make_tools(task, workspace)
        system = prompts.system_prompt("generator", self.soul)
        tools = prompts.tool_schemas()
        for _ in range(settings.max_turns):
            messages = prompts.generator_messages(self.draft, system)
            completion = await self.clients.generator.complete(
                messages, sample=self.task.id, seed=self.seed, tools=tools
            )
            self._note("generator", completion)
            self.draft.append(completion.message)
            if completion.message.tool_call is None:
                break
            result = await asyncio.to_thread(toolbox.execute, completion.message.tool_call)
            self.draft.append(Message("tool_result", result.text))
        else:
            raise _Dropped("the draft did not end within max_turns")
        self.verdict = check(task, self.draft, workspace)
        if not self.verdict.success:
            raise _Dropped("the draft failed its task")

    async def revise_until_accepted(self, lost: Callable[[list[Message]], str | None]) -> None:
        """Critique, revise, critique, until both critics accept or the revisions are used up.

        A revision ends it when `lost` says what got lost in it.
        """
        current = self.draft
        for revisions_left in range(self.revising.max_revisions, -1, -1):
            judgement = await self._judge(current)
            self.judgements.append(judgement)
            if judgement.accepted(self.revising.accept_score):
                self.accepted = current
                return
            if judgement.score is None:
                raise _Dropped("the critic's reply could not be read")
            if revisions_left:
                current = await self._revise(current, judgement)
                if (reason := lost(current)) is not None:
                    raise _Dropped(reason)

    async def _judge(self, conversation: list[Message]) -> Judgement:
        rules = critique(conversation, self.soul)
        reply = await ask_critic(self.clients.critic, conversation, self.soul, self._asking("critic"))
        if reply is None:
            return Judgement(None, (), rules.text, rules.score)
        broken = dict.fromkeys([*reply.violations, *(violation.principle for violation in rules.violations)])
        text = reply.critique if rules.text == reply.critique else f"{reply.critique} {rules.text}"
        return Judgement(reply.score, tuple(broken), text, rules.score)

    async def _revise(self, conversation: list[Message], judgement: Judgement) -> list[Message]:
        system = prompts.system_prompt("reviser", self.soul)
        messages = prompts.reviser_messages(conversation, judgement.text, system)
        count = sum(message.role == "assistant" for message in conversation)
        schema = (REVISER_SCHEMA_NAME, prompts.reviser_schema())
        parse = functools.partial(parse_texts, count=count)
        texts = await ask_until_parsed(self.clients.reviser, messages, schema, parse, self._asking("reviser"))
        if texts is None:
            self.refused_revisions += 1
            return conversation
        return with_texts(conversation, texts)

    def _asking(self, part: str) -> Asking:
        return Asking(self.task.id, self.seed, functools.partial(self._note, part))

    def _note(self, part: str, completion: Completion) -> None:
        self.keys.append(completion.key)
        self.models[part] = completion.model


def with_texts(conversation: Conversation, texts: Sequence[str]) -> list[Message]:
    """The conversation with its assistant texts replaced in order; calls and results stay the very same objects.

    Raises ValueError when the number of texts is not the number of assistant messages.
    """
    spoken = [index for index, message in enumerate(conversation) if message.role == "assistant"]
    revised = list(conversation)
    for index, text in zip(spoken, texts, strict=True):
        revised[index] = replace(revised[index], content=text)
    return revised
