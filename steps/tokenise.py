"""Stage: tokenisation. One source's shards and a tokenizer in; memory-mapped token shards out, one for each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanocode.data.encoding import encode_documents
from nanocode.data.shards import SPLITS, read_shard_texts, shard_paths
from nanocode.data.tokens import TokenShardWriter, complete_tokens
from nanocode.stopping import Interrupted
from nanocode.tokenizer import Tokenizer

Entries = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Inputs:
    """`shards` and `tokenizer` are folders. `finished` says which shards of `output` an earlier attempt completed."""

    shards: Path
    tokenizer: Path
    output: Path
    finished: Entries = field(default_factory=dict)


def run(
    inputs: Inputs,
    processes: int,
    say: Callable[[str], None],
    save: Callable[[Entries], None] = lambda entries: None,
    stop_requested: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Write the token folder (`nanocode.data.tokens`) with `processes` encoders; returns its figures.

    `save` hears after each shard which ones are whole. Raises ShardError, ArrayFileError, WorkerError; Interrupted
    when asked to stop.
    """
    path = inputs.tokenizer / "tokenizer.json"
    vocab_size = Tokenizer.load(path).vocab_size
    entries: dict[str, Mapping[str, int]] = dict(inputs.finished)
    for shard in [shard for split in SPLITS for shard in shard_paths(inputs.shards, split)]:
        if shard.stem in entries:
            continue
        with TokenShardWriter(inputs.output, shard.stem, vocab_size) as writer:
            for encoded in encode_documents(path, read_shard_texts(shard), processes):
                writer.write(encoded.ids, encoded.lengths)
                if stop_requested():
                    raise Interrupted(f"stopped in {shard.stem}; run the same command to continue")
        entries[shard.stem] = writer.entry
        say(f"tokenise: {shard.stem}: {writer.entry['tokens']:,} tokens of {writer.entry['documents']:,} documents")
        save(entries)
    complete_tokens(inputs.output, vocab_size, entries)
    totals = {key: sum(entry[key] for entry in entries.values()) for key in ("documents", "tokens")}
    return totals | {"source": _source(inputs.shards)}


def _source(shards: Path) -> str:
    return str(json.loads((shards / "report.json").read_text(encoding="utf-8"))["source"])
