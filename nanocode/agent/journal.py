"""What the tools tell of their work: to the audit log, where there is one, and to undo.

With an audit log everything lies on disk, so a session that is started again on the same log can undo what the earlier
one did. Without one, edits can be undone until the process ends, and commands not at all: looking through the workspace
before each would cost evaluation and data generation, which throw their workspaces away, for nothing.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nanocode.agent.files import FileContent, ToolError, Workspace
from nanocode.agent.policy import Decision
from nanocode.agent.results import ToolResult
from nanocode.agent.undo import DiskImages, Effect, FileChange, Images, MemoryImages, restore, sha256
from nanocode.agent.watching import Watch
from nanocode.conversation import ToolCall

if TYPE_CHECKING:
    from nanocode.agent.audit import AuditLog

IMAGES_FOLDER = "before"
WITHOUT_EFFECT = frozenset({"Read", "Grep"})
NOT_DECIDED = Decision("deny", "the call cannot be carried out")


@dataclass
class Journal:
    """The effects on one workspace. Raises AuditError when ``audit`` lies inside of it."""

    files: Workspace
    audit: AuditLog | None = None
    clock: Callable[[], float] = time.monotonic
    _effects: list[Effect] = field(default_factory=list, init=False)
    _calls: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.images: Images = MemoryImages()
        self._watch: Watch | None = None
        if self.audit is not None:
            self.audit.refuse_workspace(self.files.root)
            self.images = DiskImages(self.audit.path.parent / IMAGES_FOLDER)
            self._watch = Watch(self.files)
            self._effects = list(effects_of(self.audit.entries, str(self.files.root)))
            self.images.use(change.before for effect in self._effects for change in effect.changes if change.before)
            self._calls = self.audit.next_call
            self.audit.append("opened", workspace=str(self.files.root))

    def begin(self, call: ToolCall) -> Entry:
        """A call has come in."""
        self._calls += 1
        return Entry(self, self._calls - 1, call, self.clock())

    def undo(self) -> str | None:
        """Take the last effect back; names its files, None without one. Raises ToolError when that cannot be done."""
        if not self._effects:
            return None
        effect = self._effects[-1]
        restored = restore(self.files, self.images, effect) if effect.changes else None
        self._effects.pop()
        if self.audit is not None:
            changes = [change.to_json() for change in effect.changes]
            self.audit.append("undo", undone=effect.call, files=changes, uncovered=effect.uncovered)
        if restored is None:
            lost = "1 file that was" if effect.uncovered == 1 else f"{effect.uncovered} files that were"
            raise ToolError(
                f"the last command changed {lost} binary or too large to keep; undo again for what came before"
            )
        return restored

    def note(self, kind: str, entry: Entry, durable: bool, **values: Any) -> None:
        """One line about a call; ``durable``: waited for until it is on disk."""
        if self.audit is None:
            return
        self.audit.append(
            kind,
            durable=durable,
            call=entry.number,
            tool=entry.call.name,
            arguments=entry.call.arguments,
            decision=entry.decision.verdict,
            rule=entry.decision.rule,
            files=[change.to_json() for change in entry.changes],
            **values,
        )

    def keep(self, effect: Effect) -> None:
        """From now on this is what undo takes back first."""
        self._effects.append(effect)

    @contextmanager
    def watched(self, entry: Entry, writable: bool) -> Iterator[None]:
        """Around a command: finds what it changed, if it may write, also when it was interrupted."""
        if self._watch is None or not writable:
            entry.intend()
            yield
            return
        self._watch.look()
        entry.intend()
        try:
            yield
        finally:
            entry.changes, entry.uncovered = self._watch.changes(self.images)


@dataclass
class Entry:
    """One call from its arrival to its end."""

    journal: Journal
    number: int
    call: ToolCall
    started: float
    decision: Decision = NOT_DECIDED
    changes: tuple[FileChange, ...] = ()
    uncovered: int = 0
    _intended: tuple[FileChange, ...] = ()

    def intend(self, *changes: FileChange) -> None:
        """The call runs now: on disk before anything happens, with the changes where they are known."""
        self.changes = self._intended = changes
        self.journal.note("intent", self, durable=self.call.name not in WITHOUT_EFFECT)

    def edit(self, path: str, before: FileContent | None, after: bytes) -> None:
        """`intend` an edit, with its pre-image kept."""
        digest = None if before is None else self.journal.images.put(before.data)
        mode = None if before is None else stat.S_IMODE(before.status.st_mode)
        self.intend(FileChange(path, digest, sha256(after), mode))

    def end(self, result: ToolResult | None) -> None:
        """The call is over; None says that it was interrupted. What a failed edit intended has not happened.

        Undo can do without this line unless it tells of changes that the intent did not know.
        """
        if self.call.name == "Edit" and result is not None and not result.ok:
            self.changes = ()
        self.journal.note(
            "call",
            self,
            durable=bool(self.uncovered or (self.changes and self.changes != self._intended)),
            uncovered=self.uncovered,
            exit_code=None if result is None else result.exit_code,
            bytes=None if result is None else len(result.text.encode()),
            seconds=round(self.journal.clock() - self.started, 6),
            ok=result is not None and result.ok,
        )
        if self.changes or self.uncovered:
            self.journal.keep(Effect(self.number, self.call.name, self.changes, self.uncovered))


def effects_of(entries: tuple[Mapping[str, Any], ...], workspace: str) -> Iterator[Effect]:
    """What a log tells of one workspace and has not taken back, the oldest first.

    An edit that has an intent and no outcome may have happened before a crash; undo finds out by the file itself.
    """
    found: dict[int, Effect] = {}
    here = False
    for entry in entries:
        if entry["kind"] == "opened":
            here = entry["workspace"] == workspace
        elif entry["kind"] == "undo":
            found.pop(entry["undone"], None)
        elif here and entry["kind"] in ("intent", "call"):
            changes = tuple(FileChange.from_json(change) for change in entry["files"])
            found.pop(entry["call"], None)
            if changes or entry.get("uncovered"):
                found[entry["call"]] = Effect(entry["call"], entry["tool"], changes, entry.get("uncovered", 0))
    yield from found.values()
