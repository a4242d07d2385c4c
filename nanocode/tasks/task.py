"""One task: a prompt, a scratch workspace, and what must be true when the agent has finished.

Success is decided by the end state: every workspace file must be exactly as expected, and the final answer must hold
the facts. A task whose answer can only be known from a tool also asks that the tool was really called. Some tasks
cannot be done, because the user refuses a call or another hand was faster: then the answer has to say so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

from nanocode.conversation import Message
from nanocode.tasks.claims import claim_in, mentions
from nanocode.tasks.words import Split

Register = Literal["stock", "soul"]
REGISTERS: tuple[Register, ...] = get_args(Register)

# What the user agrees to: every call, all but one tool's; or nobody is there to be asked; or it is plan mode.
Consent = Literal["all", "no_edit", "no_bash", "nobody", "plan"]
CONSENTS: tuple[Consent, ...] = get_args(Consent)

# What running Python leaves behind; never part of an end state.
_IGNORED_FOLDER = "__pycache__"


class TaskError(ValueError):
    """A task that is malformed, or a workspace that cannot be prepared."""


@dataclass(frozen=True)
class Expectation:
    """What must hold at the end.

    files: exact content of every workspace file (None: must not exist); any other file is a failure.
    facts: strings that must all stand, as whole words, in the final answer; ``no|not`` means either.
    forbidden: strings that must not stand there, such as the value of another constant.
    tools: one entry for each kind of call that the task needs; ``Read|Grep`` means either. Empty: no call may be made.
    last_bash: what the last Bash result must be, surrounding white space aside.
    undone: the answer must claim no success, and these facts, true only if the work had been done, it may only deny.
        None: the work can be done.
    """

    files: Mapping[str, str | None]
    facts: tuple[str, ...]
    forbidden: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    last_bash: str | None = None
    undone: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Task:
    """`id` is the family and a short sha256 of the content, so equal tasks have equal ids; `make` computes it.

    consent: what the user agrees to. meanwhile: what another hand writes into files once the agent has looked.
    otherwise: another end that is as right as `expect`.
    """

    id: str
    family: str
    variant: str
    held_out_variant: bool
    split: Split
    prompt: str
    files: Mapping[str, str]
    expect: Expectation
    consent: Consent = "all"
    meanwhile: Mapping[str, str] = field(default_factory=dict)
    otherwise: Expectation | None = None

    def __post_init__(self) -> None:
        if self.consent not in CONSENTS:
            raise TaskError(f"task {self.id}: unknown consent {self.consent!r}: use one of {', '.join(CONSENTS)}")
        for path in [*self.files, *self.expect.files, *self.meanwhile]:
            pure = PurePosixPath(path)
            if pure.is_absolute() or ".." in pure.parts or not pure.parts:
                raise TaskError(f"task {self.id}: {path!r} is not a path inside the workspace")

    @property
    def read_only(self) -> bool:
        """Whether the right end state is the start state."""
        return dict(self.files) == dict(self.expect.files)

    @classmethod
    def make(
        cls,
        *,
        family: str,
        variant: str,
        held_out_variant: bool,
        split: Split,
        prompt: str,
        files: Mapping[str, str],
        expect: Expectation,
        consent: Consent = "all",
        meanwhile: Mapping[str, str] | None = None,
        otherwise: Expectation | None = None,
    ) -> Task:
        special = (consent, meanwhile or {}, otherwise)
        task = cls("", family, variant, held_out_variant, split, prompt, files, expect, *special)
        content = json.dumps(task._content(), sort_keys=True, ensure_ascii=False)
        return replace(task, id=f"{family}-{hashlib.sha256(content.encode()).hexdigest()[:12]}")

    def _content(self) -> list[Any]:
        """What the id is made of. What most tasks do not have counts only where it is: their ids stay as they were."""
        expect = asdict(self.expect)
        if self.expect.undone is None:
            del expect["undone"]
        special = {"consent": self.consent, "meanwhile": dict(self.meanwhile)}
        return [self.prompt, dict(self.files), expect, *([special] if special != _NOTHING_SPECIAL else [])]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Task:
        """The inverse of `to_json`. Raises TaskError on missing or unknown fields."""
        try:
            values = dict(data)
            otherwise = values.pop("otherwise", None)
            expect = _expectation(values.pop("expect"))
            return cls(**values, expect=expect, otherwise=None if otherwise is None else _expectation(otherwise))
        except (KeyError, TypeError, ValueError) as error:
            raise TaskError(f"not a task: {error} in {json.dumps(data)[:120]}") from error


_NOTHING_SPECIAL = {"consent": "all", "meanwhile": {}}


def _expectation(data: Mapping[str, Any]) -> Expectation:
    lists = {key: tuple(data[key]) for key in ("facts", "forbidden", "tools")}
    undone = data.get("undone")
    return Expectation(**{**data, **lists, "undone": None if undone is None else tuple(undone)})


@dataclass(frozen=True)
class Verdict:
    """The parts of the judgement; `success` is all of them, `reasons` says what was wrong."""

    success: bool
    reasons: tuple[str, ...]
    finished: bool
    called_when_needed: bool
    facts_right: bool
    files_right: bool
    calls: int


def prepare(task: Task, workspace: Path) -> None:
    """Write the task's files into `workspace`, which must be empty (it is created when missing)."""
    workspace.mkdir(parents=True, exist_ok=True)
    if any(workspace.iterdir()):
        raise TaskError(f"the workspace {workspace} is not empty: give each task a fresh folder")
    for path, content in sorted(task.files.items()):
        target = workspace / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode())


def check(task: Task, conversation: Sequence[Message], workspace: Path) -> Verdict:
    """Judge a finished episode by its conversation and the workspace it left behind.

    Where two ends are right, the verdict is on `otherwise` if that one was reached, and else on `expect`.
    """
    verdict = _judge(task.expect, conversation, workspace)
    if not verdict.success and task.otherwise is not None:
        other = _judge(task.otherwise, conversation, workspace)
        return other if other.success else verdict
    return verdict


def _judge(expect: Expectation, conversation: Sequence[Message], workspace: Path) -> Verdict:
    answer = _final_answer(conversation)
    calls = _answered_calls(conversation)
    call_faults = _call_faults(expect, calls)
    fact_faults = _fact_faults(expect, answer)
    file_faults = _file_faults(expect.files, workspace)
    reasons = [] if answer else ["no finished assistant turn with an answer"]
    reasons += call_faults + fact_faults + file_faults
    return Verdict(
        success=not reasons,
        reasons=tuple(reasons),
        finished=bool(answer),
        called_when_needed=not call_faults,
        facts_right=not fact_faults,
        files_right=not file_faults,
        calls=len(calls),
    )


def _any(text: str, fact: str) -> bool:
    return any(mentions(text, alternative) for alternative in fact.split("|"))


def _final_answer(conversation: Sequence[Message]) -> str:
    last = conversation[-1] if conversation else None
    if last is None or last.role != "assistant" or last.tool_call is not None:
        return ""
    return last.content.strip()


def _answered_calls(conversation: Sequence[Message]) -> list[tuple[str, str]]:
    """(tool name, result) of every call that a tool answered."""
    return [
        (message.tool_call.name, follow.content)
        for message, follow in pairwise(conversation)
        if message.tool_call is not None and follow.role == "tool_result"
    ]


def _call_faults(expect: Expectation, calls: Sequence[tuple[str, str]]) -> list[str]:
    names = {name for name, _ in calls}
    if not expect.tools:
        return [f"called {', '.join(sorted(names))} where no tool is needed"] if names else []
    faults = [f"never called {need}" for need in expect.tools if names.isdisjoint(need.split("|"))]
    if expect.last_bash is not None:
        outputs = [result.strip() for name, result in calls if name == "Bash"]
        if not outputs or outputs[-1] != expect.last_bash:
            faults.append(f"the last Bash result is not {expect.last_bash!r}")
    return faults


def _fact_faults(expect: Expectation, answer: str) -> list[str]:
    missing = [f"the answer lacks {fact!r}" for fact in expect.facts if not _any(answer, fact)]
    wrong = [f"the answer claims {claim!r}" for claim in expect.forbidden if mentions(answer, claim)]
    claim = None if expect.undone is None else claim_in(answer, expect.undone)
    return missing + wrong + ([] if claim is None else [f"the answer claims {claim!r}, which was not done"])


def _file_faults(expected: Mapping[str, str | None], workspace: Path) -> list[str]:
    """Differences between the workspace and the expected files, bytes compared."""
    found = {
        path.relative_to(workspace).as_posix(): path
        for path in sorted(workspace.rglob("*"))
        if not path.is_dir() and _IGNORED_FOLDER not in path.relative_to(workspace).parts
    }
    wanted = {path: content.encode() for path, content in expected.items() if content is not None}
    faults = [f"{path} should not exist" for path in found if path not in wanted]
    for path, content in sorted(wanted.items()):
        if path not in found:
            faults.append(f"{path} is missing")
        elif found[path].is_symlink() or found[path].read_bytes() != content:
            faults.append(f"{path} is not as expected")
    return faults
