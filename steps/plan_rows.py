"""Stage: the packing plan of one source's training tokens. Integers in, integers out: no text is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nanocode.data.packing import BUFFER_DOCUMENTS, REFILL_DOCUMENTS, plan_documents
from nanocode.data.plans import complete_plans, save_plan
from nanocode.data.tokens import open_tokens


def run(tokens: Path, context_tokens: int, output: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Write the plan folder (`nanocode.data.plans`) for rows of context + 1 tokens; returns its figures.

    Raises ArrayFileError for tokens that are not whole.
    """
    row_tokens = context_tokens + 1
    rule = {"buffer_documents": BUFFER_DOCUMENTS, "refill_documents": REFILL_DOCUMENTS, "keep_rest": True}
    entries = {}
    for shard in open_tokens(tokens, "train"):
        plan = plan_documents(shard.lengths, row_tokens, keep_rest=True)
        entries[shard.name] = save_plan(output, shard, plan)
        say(f"plan_rows: {shard.name}: {len(plan):,} rows of {row_tokens:,} tokens, {plan.tail_tokens:,} left over")
    complete_plans(output, row_tokens, rule, entries)
    return {key: sum(entry[key] for entry in entries.values()) for key in ("rows", "pieces", "tokens", "added_bos")}
