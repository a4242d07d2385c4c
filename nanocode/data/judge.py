"""The verdict on one document, from its content and the rules alone: what can be done by many processes at once."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice

from nanocode.config import FilterConfig
from nanocode.data.decontaminate import Overlap, OverlapIndex
from nanocode.data.deduplicate import Fingerprint, fingerprint
from nanocode.data.documents import Document, RawDocument, admit
from nanocode.data.filters import apply_filters
from nanocode.data.reading import Block

BLOCKS_AHEAD = 2  # per process: what waits is in memory


@dataclass(frozen=True)
class Rules:
    """What a document must pass. `near` asks for the MinHash too; without `overlap` nothing is decontaminated."""

    min_bytes: int
    max_bytes: int
    filters: FilterConfig
    near: bool
    overlap: OverlapIndex | None = None
    drop_coverage: float | None = None  # share of an item from which a document is dropped; None: never


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
    blocks: Iterator[Block], rules: Rules, workers: int
) -> Generator[tuple[Block, Iterable[Judged]], None, None]:
    """Every block with the verdicts on its documents, in order, whatever the number of processes that judge."""
    if workers == 1:
        for block in blocks:
            yield block, (judge(raw, rules) for raw in block.documents)
        return
    # Spawned, not forked: Arrow's threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_adopt, initargs=(rules,))
    waiting: deque[tuple[Block, Future[list[Judged]]]] = deque()
    try:
        while True:
            for block in islice(blocks, workers * BLOCKS_AHEAD - len(waiting)):
                waiting.append((block, pool.submit(_judge_all, block.documents)))
            if not waiting:
                return
            block, verdicts = waiting.popleft()
            yield block, verdicts.result()
    finally:
        pool.shutdown(cancel_futures=True)


_rules: Rules | None = None  # of this process, when it is one of the pool


def _adopt(rules: Rules) -> None:
    global _rules
    _rules = rules


def _judge_all(documents: list[RawDocument]) -> list[Judged]:
    if _rules is None:
        raise RuntimeError("a judging process was started without rules")
    return [judge(raw, _rules) for raw in documents]
