"""The verdict on one document, from its content and the rules alone: what can be done by many processes at once."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace

from nanocode.config import AnySource, DataConfig, FilterConfig
from nanocode.data.decontaminate import Overlap, OverlapIndex
from nanocode.data.deduplicate import Fingerprint, fingerprint
from nanocode.data.documents import Document, RawDocument, admit
from nanocode.data.evaluation_sets import overlap_index
from nanocode.data.filters import apply_filters
from nanocode.data.reading import Block
from nanocode.workers import in_processes


@dataclass(frozen=True)
class Rules:
    """What a document must pass. `near` asks for the MinHash too; without `overlap` nothing is decontaminated."""

    min_bytes: int
    max_bytes: int
    filters: FilterConfig
    near: bool
    overlap: OverlapIndex | None = None
    drop_coverage: float | None = None  # share of an item from which a document is dropped; None: never

    @classmethod
    def of(cls, data: DataConfig, source: AnySource) -> Rules:
        """The rules of a source. Raises SourceError for an evaluation set that is not the pinned one."""
        decontamination = data.decontamination
        return cls(
            data.min_document_bytes,
            data.max_document_bytes,
            source.filters,
            near=data.near_duplicate_threshold < 1,
            overlap=overlap_index(decontamination),
            drop_coverage=decontamination.min_coverage if decontamination.action == "drop" else None,
        )


@dataclass(frozen=True)
class Judged:
    """A verdict: a document with its fingerprint, or the `reason` why there is none; and what was seen on the way."""

    read_bytes: int
    sha256: bytes  # of the content as it was read
    document: Document | None = None
    fingerprint: Fingerprint | None = None
    reason: str | None = None
    found: Counter[str] = field(default_factory=Counter)  # matches by filter rule
    overlaps: tuple[Overlap, ...] = ()
    origin: str = ""


def judge(raw: RawDocument, rules: Rules) -> Judged:
    """Admit, filter, compare with the evaluation items, fingerprint: the first that objects gives the reason."""
    content = raw.content if isinstance(raw.content, bytes) else raw.content.encode("utf-8", "surrogatepass")
    verdict = Judged(len(content), hashlib.sha256(content).digest(), origin=raw.origin)
    document = admit(raw, rules.min_bytes, rules.max_bytes)
    if isinstance(document, str):
        return replace(verdict, reason=document)
    filtered = apply_filters(document.text, rules.filters)
    verdict = replace(verdict, found=filtered.found)
    if filtered.dropped_for is not None:
        return replace(verdict, reason=f"has_{filtered.dropped_for}")
    document = replace(document, text=filtered.text)
    if rules.overlap is not None:
        verdict = replace(verdict, overlaps=tuple(rules.overlap.overlaps(document.text)))
        limit = rules.drop_coverage
        if limit is not None and any(overlap.coverage >= limit for overlap in verdict.overlaps):
            return replace(verdict, reason="contaminated")
    return replace(verdict, document=document, fingerprint=fingerprint(document.text, rules.near))


def judged_blocks(
    blocks: Iterator[Block], data: DataConfig, source: AnySource
) -> Generator[tuple[Block, list[Judged]], None, None]:
    """Every block with the verdicts on its documents, in order, whatever the number of processes that judge."""
    taken: deque[Block] = deque()

    def documents() -> Iterator[list[RawDocument]]:
        for block in blocks:
            taken.append(block)
            yield block.documents

    settings = data.model_copy(update={"sources": (source,)}).model_dump_json()
    verdicts = in_processes(judge_of, [settings], documents(), data.workers)
    try:
        for judged in verdicts:
            yield taken.popleft(), judged
    finally:
        if isinstance(verdicts, Generator):
            verdicts.close()  # ends the processes


def judge_of(settings: str) -> Callable[[list[RawDocument]], list[Judged]]:
    """What judges the documents of the one source in `settings`, a DataConfig as JSON. Raises SourceError."""
    data = DataConfig.model_validate_json(settings)
    rules = Rules.of(data, data.sources[0])
    return lambda documents: [judge(raw, rules) for raw in documents]
