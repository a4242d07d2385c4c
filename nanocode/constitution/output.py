"""The files that a stage writes: rows go to disk as tasks end, in task order, and count when all are there."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from nanocode.constitution.gate import Bounds, cohens_d, decide
from nanocode.constitution.records import Counts, conversation_row, pair_row
from nanocode.constitution.rollout import Rollout
from nanocode.constitution.rules import adheres
from nanocode.constitution.soul import Soul
from nanocode.conversation import Conversation, Message, from_json, render
from nanocode.data.decontaminate import OverlapIndex
from nanocode.tokenizer import Tokenizer


class Sink(Protocol):
    """What takes the outcomes of tasks, in their order."""

    def take(self, outcome: Rollout | None) -> None:
        """None stands for a task that an endpoint refused for good."""

    def finish(self) -> dict[str, Any]:
        """Give the file its name; the stage's metrics."""


class Decontaminated:
    """Before another sink: a version in which the assistant repeats a piece of an evaluation is dropped by that name.

    What a user asks is not looked at: tasks are held out from the evaluations by other means.
    """

    def __init__(self, sink: Sink, overlap: OverlapIndex, min_coverage: float) -> None:
        self._sink, self._overlap, self._min_coverage = sink, overlap, min_coverage

    def take(self, outcome: Rollout | None) -> None:
        """See Sink."""
        if outcome is not None and outcome.accepted is not None and self._leaks(*outcome.accepted, *outcome.draft):
            outcome = replace(outcome, accepted=None, dropped="contaminated")
        self._sink.take(outcome)

    def finish(self) -> dict[str, Any]:
        """See Sink."""
        return self._sink.finish()

    def _leaks(self, *messages: Message) -> bool:
        said = [message for message in messages if message.role == "assistant"]
        written = [value for message in said if message.tool_call for value in message.tool_call.arguments.values()]
        text = "\n".join([*(message.content for message in said), *written])
        return any(found.coverage >= self._min_coverage for found in self._overlap.overlaps(text))


class InOrder:
    """Hands on outcomes in the order of their indices, holding back those that came too early."""

    def __init__(self, take: Callable[[Rollout | None], None]) -> None:
        self._take, self._next = take, 0
        self._early: dict[int, Rollout | None] = {}

    def put(self, index: int, outcome: Rollout | None) -> None:
        """The outcome of task `index`, each once, in any order."""
        self._early[index] = outcome
        while self._next in self._early:
            self._take(self._early.pop(self._next))
            self._next += 1


class _Lines:
    """A JSONL file that has its name only once it is whole."""

    def __init__(self, path: Path) -> None:
        self._path, self._partial = path, path.with_name(f"{path.name}.partial")
        self._file = self._partial.open("w", encoding="utf-8", newline="\n")

    def write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def finish(self) -> None:
        self._file.close()
        self._partial.replace(self._path)


class _RowFile(ABC):
    """A sink with a file of its own, to which only accepted outcomes come."""

    def __init__(self, path: Path, soul: Soul) -> None:
        self._lines, self._soul, self._counts = _Lines(path), soul, Counts()

    def take(self, outcome: Rollout | None) -> None:
        """See Sink."""
        if outcome is None:
            self._counts.add_refused()
            return
        self._counts.add(outcome)
        if outcome.accepted is not None:
            self._take(outcome, outcome.accepted)

    def finish(self) -> dict[str, Any]:
        """See Sink."""
        self._lines.finish()
        return self._counts.metrics() | self._figures()

    @abstractmethod
    def _take(self, outcome: Rollout, accepted: Conversation) -> None: ...

    @abstractmethod
    def _figures(self) -> dict[str, Any]:
        """What is known of the file's rows, beside the counts of tasks."""


class ConversationFile(_RowFile):
    """``conversations.jsonl``: both registers of every kept task, the draft as it was and the accepted version."""

    def __init__(self, folder: Path, soul: Soul) -> None:
        super().__init__(folder / "conversations.jsonl", soul)
        self._registers, self._adhering = Counter[str](), 0

    def _take(self, outcome: Rollout, accepted: Conversation) -> None:
        if not outcome.draft_accepted:
            self._write(conversation_row(outcome, "stock", outcome.draft, self._soul))
        self._write(conversation_row(outcome, "soul", accepted, self._soul))

    def _write(self, row: dict[str, Any]) -> None:
        self._lines.write(row)
        self._registers[row["register"]] += 1
        self._adhering += adheres(from_json(row["messages"]), self._soul)

    def _figures(self) -> dict[str, Any]:
        rows = self._registers.total()
        return {"conversations": dict(self._registers), "adherence": self._adhering / rows if rows else None}


class AcceptedFile(_RowFile):
    """``conversations.jsonl`` of given conversations: the accepted versions alone, if they fit the context."""

    def __init__(self, folder: Path, soul: Soul, tokenizer: Tokenizer, context_tokens: int) -> None:
        super().__init__(folder / "conversations.jsonl", soul)
        self._tokenizer, self._context_tokens = tokenizer, context_tokens
        self._licences = Counter[str]()

    def _take(self, outcome: Rollout, accepted: Conversation) -> None:
        fits = len(render(accepted, self._tokenizer).ids) <= self._context_tokens
        self._counts.gate["kept" if fits else "longer than the context"] += 1
        if fits:
            row = conversation_row(outcome, "soul", accepted, self._soul)
            self._lines.write(row)
            self._licences[str(row["provenance"].get("licence"))] += 1

    def _figures(self) -> dict[str, Any]:
        return {"conversations": {"soul": self._licences.total()}, "licences": dict(self._licences)}


class PairFile(_RowFile):
    """``pairs.jsonl``: (accepted version, draft) of every kept task that passes the gate."""

    def __init__(self, folder: Path, soul: Soul, tokenizer: Tokenizer, bounds: Bounds) -> None:
        super().__init__(folder / "pairs.jsonl", soul)
        self._tokenizer, self._bounds = tokenizer, bounds
        self._lengths: tuple[list[int], list[int]] = ([], [])

    def _take(self, outcome: Rollout, accepted: Conversation) -> None:
        judged = outcome.judgements[-1], outcome.judgements[0]
        decision = decide(accepted, outcome.draft, judged, self._tokenizer, self._bounds)
        self._counts.gate[decision.refused or "kept"] += 1
        if decision.refused is None:
            self._lines.write(pair_row(outcome, accepted, decision, self._soul))
            self._lengths[0].append(decision.chosen_tokens)
            self._lengths[1].append(decision.rejected_tokens)

    def _figures(self) -> dict[str, Any]:
        return {"pairs": len(self._lengths[0]), "length_cohens_d": cohens_d(*self._lengths)}
