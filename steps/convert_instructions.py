"""Stage: one public instruction set -> conversations with executed tool calls, gated, and a report of every drop.

Rows go through one at a time: secrets filtered, planned, carried out in a workspace in memory, judged, written. What is
done by the end of a block of the source can be saved, and a killed stage goes on from there with the same bytes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from nanocode.agent.policy import Policy
from nanocode.agent.sandbox import Sandbox
from nanocode.agent.tools import Toolbox
from nanocode.config import DecontaminationConfig, InstructionSource
from nanocode.constitution.summary import SOURCES, source_name
from nanocode.conversation import from_json, to_json
from nanocode.data.documents import SourceError
from nanocode.data.evaluation_sets import overlap_index
from nanocode.data.reading import Reading, Retry
from nanocode.data.sources import manifest_digests, read_blocks, source_manifest
from nanocode.stopping import Interrupted
from nanocode.tasks.converters.convert import CONVERTERS, convert
from nanocode.tasks.converters.gates import Gates
from nanocode.tasks.converters.plans import Converted, Dropped, Limits, MissingColumn, Row
from nanocode.tasks.converters.reading import Filters, rows_of, table_of
from nanocode.tasks.converters.tally import Tally
from nanocode.tokenizer import Tokenizer

CONVERSATIONS = "conversations.jsonl"


class NoInstructions(ValueError):
    """A set of which nothing is left."""


@dataclass(frozen=True)
class Inputs:
    """`scratch` is for copies of remote files, `workspaces` for the tools (None: beside other
    temporary files).

    With a `manifest`, files that are not what it says are refused. `state` is what an earlier attempt saved last; its
    conversations are then in `output`.
    """

    tokenizer: Path
    output: Path
    scratch: Path
    context_tokens: int
    manifest: bytes | None = None
    state: Mapping[str, Any] | None = None
    workspaces: Path | None = None


def manifest(source: InstructionSource, retry: Retry | None = None) -> bytes:
    """The canonical listing of the raw bytes this stage reads. Raises SourceError when there are none."""
    return source_manifest(table_of(source), retry or Retry())


def run(
    source: InstructionSource,
    decontamination: DecontaminationConfig,
    inputs: Inputs,
    say: Callable[[str], None],
    save: Callable[[int, Mapping[str, Any]], None] = lambda rows, state: None,
    stop_requested: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Write ``conversations.jsonl`` and ``report.json`` into `inputs.output`; returns the report.

    `save` is offered (rows read, state) whenever the output is whole up to there. Raises SourceError when the source
    cannot be read or lacks a column, NoInstructions when no conversation is left, Interrupted when asked to stop.
    """
    overlap = overlap_index(decontamination)
    gates = Gates(
        Tokenizer.load(inputs.tokenizer / "tokenizer.json"),
        inputs.context_tokens,
        source.near_duplicate_threshold,
        overlap,
        decontamination.min_coverage if decontamination.action == "drop" else None,
    )
    tally, place = _resumed(inputs, gates)
    stage = _Stage(source, inputs, gates, tally)
    with (inputs.output / CONVERSATIONS).open("a", encoding="utf-8", newline="\n") as file:
        for after in stage.convert_blocks(file, say, place):
            save(tally.rows, {"tally": tally.state(), "place": after})
            say(f"{source.name}: {tally.rows:,} rows read, {tally.kept:,} conversations kept")
            if stop_requested() and not stage.is_full:
                raise Interrupted(f"stopped in instruction source {source.name}; run the same command to continue")
    if tally.kept == 0:
        raise NoInstructions(f"instruction source {source.name!r} gave no conversation; dropped: {dict(tally.dropped)}")
    report = tally.report() | {
        "source": source.name,
        "kind": source.kind,
        "decontaminated": overlap is not None,
        SOURCES: {source_name(_set_name(source), source.revision): tally.kept},
    }
    text = json.dumps(report, indent=2, sort_keys=True, ensure_ascii=False)
    (inputs.output / "report.json").write_text(text + "\n", encoding="utf-8")
    return report


def _resumed(inputs: Inputs, gates: Gates) -> tuple[Tally, Mapping[str, Any] | None]:
    """Counts and place of an earlier attempt, whose output is cut back to what it had saved."""
    inputs.output.mkdir(parents=True, exist_ok=True)
    path = inputs.output / CONVERSATIONS
    if inputs.state is None:
        path.unlink(missing_ok=True)
        return Tally(), None
    tally = Tally.of(inputs.state["tally"])
    gates.touched.update(tally.touched)
    with path.open("r+b") as file:
        file.truncate(tally.written_bytes)
        for line in file:
            gates.remember(from_json(json.loads(line)["messages"]))
    return tally, inputs.state["place"]


class _Stage:
    """Converts the blocks of one source."""

    def __init__(self, source: InstructionSource, inputs: Inputs, gates: Gates, tally: Tally) -> None:
        self._source, self._inputs, self._gates, self._tally = source, inputs, gates, tally
        self._converter = CONVERTERS[source.kind]
        self._limits = Limits(source.max_code_lines, source.max_context_lines, source.min_ascii)
        self._sandbox = Sandbox() if source.kind == "messages" else None
        self._filters = Filters(source.filters)
        self._filters.found.update(tally.filters)

    @property
    def is_full(self) -> bool:
        """Whether `max_rows` conversations are kept."""
        return self._source.max_rows is not None and self._tally.kept >= self._source.max_rows

    def convert_blocks(
        self, file: TextIO, say: Callable[[str], None], place: Mapping[str, Any] | None
    ) -> Iterator[Mapping[str, Any]]:
        """Write the conversations of one block after another from `place` on; yields the place after each."""
        if self.is_full:
            return
        table, where = table_of(self._source), f"instruction source {self._source.name!r} (kind {self._source.kind!r})"
        digests = manifest_digests(self._inputs.manifest) if self._inputs.manifest is not None else None
        for block in read_blocks(table, Reading(Retry(say=say), self._inputs.scratch, digests), place):
            try:
                self._convert(rows_of(block, table, self._converter.columns, self._filters), file)
            except MissingColumn as error:
                raise SourceError(f"{where}: {error}") from error
            file.flush()
            self._tally.written_bytes = file.tell()
            self._tally.filters, self._tally.touched = self._filters.found, self._gates.touched
            yield block.after
            if self.is_full:
                return

    def _convert(self, rows: Iterable[Row], file: TextIO) -> None:
        for outcome in convert(rows, self._converter, self._toolbox, self._limits, self._inputs.workspaces):
            self._tally.rows += 1
            if isinstance(outcome, Dropped):
                self._tally.drop(outcome.row.origin, outcome.reason, outcome.detail)
                continue
            refused, rendered = self._gates.judge(outcome.messages, outcome.plan.files.values())
            if refused is not None or rendered is None:
                self._tally.drop(outcome.row.origin, str(refused))
                continue
            self._tally.keep(outcome, rendered)
            file.write(json.dumps(conversation_row(self._source, outcome), ensure_ascii=False) + "\n")
            if self.is_full:
                return

    def _toolbox(self, workspace: Path) -> Toolbox:
        return Toolbox(workspace, Policy("auto"), self._sandbox)


def memory_folder(shared: Path = Path("/dev/shm")) -> Path | None:
    """A folder in memory for workspaces, where files cost no flush of a disk; None where there is none."""
    return shared if shared.is_dir() and os.access(shared, os.W_OK) else None


def conversation_row(source: InstructionSource, made: Converted) -> dict[str, Any]:
    """One training conversation as plain JSON values, in the form that rollouts have."""
    return {
        "id": f"{source.name}/{made.row.origin}",
        "family": source.name,
        "variant": made.plan.variant,
        "register": "stock",
        "messages": to_json(made.messages),
        "provenance": {
            "set": _set_name(source),
            "revision": source.revision,
            "row": made.row.origin,
            "row_id": made.row_id,
            "licence": made.row.licence,
            "converter": source.kind,
            "notes": dict(made.plan.notes),
        },
    }


def _set_name(source: InstructionSource) -> str:
    return source.dataset or source.name
