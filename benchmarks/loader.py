"""Speed of the loader against what a training step consumes: tokens made into batches a second, cold and warm.

    .venv/bin/python benchmarks/loader.py [--context 512] [--rows 8] [--vocab 8192] [--steps 400] [--rounds 5]
                                          [--step-tokens-per-second 10000]

Tokenises and plans the standard library in a temporary folder, through the stages' own code, then draws batches of
two sources at random. Cold: the pages of the files are dropped before each round and the sources opened anew. Warm:
the same batches again. Ahead: the same through the prefetching thread. `--step-tokens-per-second` is what the training
step on this machine consumes (benchmarks/train_step.py); `times_the_step` compares.

The last line is one JSON document, medians and ranges over the rounds, with the load average before and after, since
the machine may be shared.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pyarrow as pa
import pyarrow.parquet as pq

from nanocode.data.loader import TokenRows
from nanocode.data.plans import open_plans
from nanocode.data.prefetch import Prefetch
from nanocode.data.rows import PackedRows
from nanocode.data.tokens import open_tokens
from nanocode.tokenizer import Tokenizer
from steps import plan_rows, tokenise

SOURCES = ("odd", "even")  # the modules of the library by turns
VALIDATION_EVERY = 20
TOKENIZER_BYTES = 4_000_000


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(measure(arguments, Path(name))))  # noqa: T201


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Build the artifacts, then time batches."""
    load_before = os.getloadavg()[0]
    building = _build(folder, arguments.vocab, arguments.context)
    rates: dict[str, list[float]] = {"cold": [], "warm": [], "ahead": []}
    for _ in range(arguments.rounds):
        _drop_pages(folder)
        opened = time.perf_counter()
        rows = _open(folder, arguments.rows)
        opening = time.perf_counter() - opened
        rates["cold"].append(_rate(rows.batch, arguments, opening))
        rates["warm"].append(_rate(rows.batch, arguments))
        with Prefetch(rows.batch, arguments.steps) as ahead:
            rates["ahead"].append(_rate(ahead, arguments))
    figures = {
        name: {
            "tokens_per_second": {"median": statistics.median(own), "low": min(own), "high": max(own)},
            "rows_per_second": statistics.median(own) / arguments.context,
            "times_the_step": statistics.median(own) / arguments.step_tokens_per_second,
        }
        for name, own in rates.items()
    }
    return {
        "benchmark": "loader",
        "context_tokens": arguments.context,
        "rows": arguments.rows,
        "steps": arguments.steps,
        "rounds": arguments.rounds,
        "step_tokens_per_second": arguments.step_tokens_per_second,
        **figures,
        **building,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "cores": os.cpu_count(),
        "load": [load_before, os.getloadavg()[0]],
    }


def _build(folder: Path, vocab: int, context: int) -> dict[str, Any]:
    """Shards, tokenizer, tokens and plans of both sources; how fast the latter two were made."""
    texts = _library()
    cores = os.cpu_count() or 1
    sample, size = [], 0
    for text in texts[:: max(1, sum(map(len, texts)) // TOKENIZER_BYTES)]:
        sample.append(text)
        size += len(text)
    Tokenizer.train(sample, vocab, cores).save(folder / "tokenizer.json")
    tokens = documents = megabytes = 0
    tokenise_seconds = plan_seconds = 0.0
    for number, source in enumerate(SOURCES):
        own = texts[number :: len(SOURCES)]
        shards, tokens_folder, plan_folder = (folder / source / part for part in ("shards", "tokens", "plan"))
        for path in (shards, tokens_folder, plan_folder):
            path.mkdir(parents=True)
        held_out = own[::VALIDATION_EVERY]
        training = [text for index, text in enumerate(own) if index % VALIDATION_EVERY]
        for name, part in (("train-00000", training), ("validation-00000", held_out)):
            pq.write_table(pa.table({"text": part}), shards / f"{name}.parquet", row_group_size=256)
        (shards / "report.json").write_text(json.dumps({"source": source}))
        started = time.perf_counter()
        metrics = tokenise.run(tokenise.Inputs(shards, folder, tokens_folder), cores, _say)
        tokenise_seconds += time.perf_counter() - started
        started = time.perf_counter()
        plan_rows.run(tokens_folder, context, plan_folder, _say)
        plan_seconds += time.perf_counter() - started
        tokens += metrics["tokens"]
        documents += metrics["documents"]
        megabytes += sum(len(text.encode()) for text in own) / 1e6
    return {
        "corpus_megabytes": megabytes,
        "corpus_tokens": tokens,
        "tokenise_megabytes_per_second": megabytes / tokenise_seconds,
        "plan_tokens_per_second": tokens / plan_seconds,
        "plan_documents_per_second": documents / plan_seconds,
    }


def _open(folder: Path, batch_rows: int) -> TokenRows:
    sources = []
    for name in SOURCES:
        shards = open_tokens(folder / name / "tokens", "train")
        sources.append(PackedRows(name, 1.0, shards, open_plans(folder / name / "plan", shards)))
    return TokenRows(sources, batch_rows, seed=0)


def _rate(batch: Callable[[int], Any], arguments: argparse.Namespace, spent: float = 0.0) -> float:
    """Tokens a second over all steps, `spent` seconds included."""
    started = time.perf_counter() - spent
    for step in range(arguments.steps):
        batch(step)
    return arguments.steps * arguments.rows * arguments.context / (time.perf_counter() - started)


def _drop_pages(folder: Path) -> None:
    """Take the files out of the page cache; written pages have to be on the disk first."""
    for path in folder.rglob("*.npy"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _library() -> list[str]:
    """Every readable module of the standard library, its tests too."""
    library = Path(sysconfig.get_paths()["stdlib"])
    texts = []
    for path in sorted(library.rglob("*.py")):
        if "site-packages" not in path.parts:
            try:
                texts.append(path.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError):
                continue
    return [text for text in texts if text]


def _say(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--vocab", type=int, default=8_192)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--step-tokens-per-second", type=float, default=10_000.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
