"""Stage: tokenisation. One source's shards and a tokenizer in; memory-mapped token shards out, one for each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
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
    tokenizer = inputs.tokenizer / "tokenizer.json"
    vocab_size = Tokenizer.load(tokenizer).vocab_size
    entries: dict[str, Mapping[str, int]] = dict(inputs.finished)
    paths = [path for split in SPLITS for path in shard_paths(inputs.shards, split) if path.stem not in entries]
    shards = ((path.stem, read_shard_texts(path)) for path in paths)
    with closing(encode_documents(tokenizer, shards, processes)) as stream:
        for name, chunks in groupby(stream, key=itemgetter(0)):
            with TokenShardWriter(inputs.output, name, vocab_size) as writer:
                for _, encoded in chunks:
                    writer.write(encoded.ids, encoded.lengths)
                    if stop_requested():
                        raise Interrupted(f"stopped in {name}; run the same command to continue")
            entries[name] = writer.entry
            say(f"tokenise: {name}: {writer.entry['tokens']:,} tokens of {writer.entry['documents']:,} documents")
            save(entries)
    complete_tokens(inputs.output, vocab_size, entries)
    totals = {key: sum(entry[key] for entry in entries.values()) for key in ("documents", "tokens")}
    return totals | {"source": _source(inputs.shards)}


def _source(shards: Path) -> str:
    return str(json.loads((shards / "report.json").read_text(encoding="utf-8"))["source"])
