"""What became of the rows of a set, counted as they pass: the body of the stage's report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nanocode.conversation import Rendered
from nanocode.tasks.converters.gates import CONTAMINATED, TOO_LONG
from nanocode.tasks.converters.plans import Converted

# Which gate a reason belongs to; what is not named here was dropped while a row was read or planned.
GATES: Mapping[str, tuple[str, ...]] = {
    "structure": ("turns out of order", "does not open with the user", "does not end with an answer"),
    "execution": (
        "Read fails",
        "Edit fails",
        "Grep fails",
        "Bash fails",
        "the end state is not the expected one",
        "results are not repeatable",
        "files cannot be written",
    ),
    "language": ("prose is not ASCII",),
    "decontamination": (CONTAMINATED,),
    "length": (TOO_LONG,),
    "duplicates": ("exact_duplicate", "near_duplicate"),
}
SECRET = "has_"


@dataclass
class Tally:
    """Counts so far. Tokens are those of kept conversations; `examples` has the first row of each reason."""

    rows: int = 0
    kept: int = 0
    written_bytes: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    longest_tokens: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    variants: Counter[str] = field(default_factory=Counter)
    tools: Counter[str] = field(default_factory=Counter)
    licences: Counter[str] = field(default_factory=Counter)
    filters: Counter[str] = field(default_factory=Counter)
    touched: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def drop(self, origin: str, reason: str, detail: str = "") -> None:
        """Count a row that is left out."""
        self.dropped[reason] += 1
        self.examples.setdefault(reason, f"{origin}: {detail}" if detail else origin)

    def keep(self, made: Converted, rendered: Rendered) -> None:
        """Count a conversation."""
        self.kept += 1
        self.tokens += len(rendered.ids)
        self.trained_tokens += sum(rendered.mask)
        self.longest_tokens = max(self.longest_tokens, len(rendered.ids))
        self.variants[made.plan.variant] += 1
        self.licences[made.row.licence] += 1
        self.tools.update(turn.tool_call.name for turn in made.messages if turn.tool_call is not None)

    def state(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {name: dict(value) if isinstance(value, dict) else value for name, value in vars(self).items()}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Tally:
        """The inverse of `state`."""
        tally = cls()
        for name, value in state.items():
            setattr(tally, name, Counter(value) if isinstance(getattr(tally, name), Counter) else value)
        return tally

    def report(self) -> dict[str, Any]:
        """The counts for people: drops by reason and by gate, what was found and what was kept."""
        gates = {gate: sum(self.dropped[reason] for reason in reasons) for gate, reasons in GATES.items()}
        gates["secrets"] = sum(count for reason, count in self.dropped.items() if reason.startswith(SECRET))
        gates["conversion"] = self.dropped.total() - sum(gates.values())
        shown = {name: value for name, value in self.state().items() if name not in ("written_bytes", "touched")}
        return {
            name: dict(sorted(value.items())) if isinstance(value, dict) else value for name, value in shown.items()
        } | {"gates": gates, "touched_items": len(self.touched)}
