"""Training and encoding a tokenizer on the standard library, beside rustbpe and tiktoken where they can be had.

    .venv/bin/python benchmarks/tokenizer.py [--vocab 8192 --vocab 32768] [--rounds 3] [--peer-python OTHER/bin/python]

Both programs take turns, each time in a fresh process, on the same texts and with all cores. The peer needs a Python
with the packages `rustbpe` and `tiktoken`; without one it is reported as absent. Encoding starts from texts in memory
and ends with their ids in memory: arrays here, lists there. Our time includes the start of the worker processes.

The last line is one JSON document: megabytes a second (median and range over the rounds), the median ratio of the two
in the same round, peak memory, and the load average before and after, since the machine may be shared.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CONTROL_TOKENS = 12
PEER_CHUNK = 128  # documents a call: what nanochat's loader asks for
# The pattern of both; written out here because the peer's Python has none of our packages.
PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
TASKS = ("train", "encode")


def main() -> None:
    arguments = _arguments()
    if arguments.one:
        print(json.dumps(MEASURED[arguments.one](arguments.folder, arguments.vocab[0], arguments.cores)))  # noqa: T201
        return
    print(json.dumps(compare(arguments.vocab, arguments.rounds, arguments.peer_python, arguments.cores)))  # noqa: T201


def compare(vocabs: list[int], rounds: int, peer_python: str, cores: int) -> dict[str, Any]:
    """All measurements, the programs in turn."""
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = _write_texts(folder)
        peer = _has_peer(peer_python)
        results: dict[str, Any] = {}
        for vocab in vocabs:
            for task in TASKS:
                results[f"{task}_{vocab}"] = _turns(task, vocab, rounds, peer_python if peer else None, folder, cores)
    return {
        "benchmark": "tokenizer",
        "megabytes": size / 1e6,
        "peer": "rustbpe + tiktoken" if peer else f"absent: {peer_python} cannot import rustbpe and tiktoken",
        "results": results,
        "cores": cores,
        "rounds": rounds,
        "load": [load_before[0], os.getloadavg()[0]],
    }


def _turns(task: str, vocab: int, rounds: int, peer: str | None, folder: Path, cores: int) -> dict[str, Any]:
    """`rounds` times ours, then the peer's."""
    size = sum(path.stat().st_size for path in folder.glob("*.txt"))
    programs = {"ours": sys.executable} | ({"peer": peer} if peer else {})
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in programs}
    for number in range(rounds):
        for name, python in programs.items():
            outcome = _run(python, f"{name}_{task}", vocab, folder, cores)
            runs[name].append(outcome)
            rate = size / 1e6 / outcome["seconds"]
            print(f"{task} {vocab}, round {number + 1}: {name} {rate:.2f} MB/s", file=sys.stderr)  # noqa: T201
    figures: dict[str, Any] = {}
    for name, outcomes in runs.items():
        rates = sorted(size / 1e6 / outcome["seconds"] for outcome in outcomes)
        figures[name] = {
            "megabytes_per_second": {"median": statistics.median(rates), "low": rates[0], "high": rates[-1]},
            "cpu_seconds": statistics.median(outcome["cpu_seconds"] for outcome in outcomes),
            "peak_rss_bytes": max(outcome["peak_rss_bytes"] for outcome in outcomes),
        }
    if peer:
        pairs = zip(runs["ours"], runs["peer"], strict=True)
        figures["ours_to_peer"] = statistics.median(other["seconds"] / own["seconds"] for own, other in pairs)
    return figures


def _run(python: str, one: str, vocab: int, folder: Path, cores: int) -> dict[str, float]:
    command = [python, __file__, "--one", one, "--vocab", vocab, "--folder", folder, "--cores", cores]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{one} failed: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def _timed(work: Callable[[], object]) -> dict[str, float]:
    started, before = time.perf_counter(), _cpu_seconds()
    work()
    seconds = time.perf_counter() - started
    own, children = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu = _cpu_seconds() - before
    return {"seconds": seconds, "cpu_seconds": cpu, "peak_rss_bytes": (own + children) * 1024}


def _cpu_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _ours_train(folder: Path, vocab: int, cores: int) -> dict[str, float]:
    sys.path.insert(0, str(ROOT))
    from nanocode.tokenizer import Tokenizer

    texts = _read_texts(folder)
    return _timed(lambda: Tokenizer.train(texts, vocab, cores).save(folder / f"ours-{vocab}.json"))


def _ours_encode(folder: Path, vocab: int, cores: int) -> dict[str, float]:
    sys.path.insert(0, str(ROOT))
    from nanocode.data.encoding import encode_documents

    texts = _read_texts(folder)
    return _timed(lambda: list(encode_documents(folder / f"ours-{vocab}.json", [("all", texts)], cores)))


def _peer_train(folder: Path, vocab: int, cores: int) -> dict[str, float]:
    import rustbpe

    texts = _read_texts(folder)
    tokenizer = rustbpe.Tokenizer()
    outcome = _timed(lambda: tokenizer.train_from_iterator(iter(texts), vocab - CONTROL_TOKENS, pattern=PATTERN))
    ranks = [[list(spelling), rank] for spelling, rank in tokenizer.get_mergeable_ranks()]
    (folder / f"peer-{vocab}.json").write_text(json.dumps(ranks))
    return outcome


def _peer_encode(folder: Path, vocab: int, cores: int) -> dict[str, float]:
    import tiktoken

    ranks = {bytes(spelling): rank for spelling, rank in json.loads((folder / f"peer-{vocab}.json").read_text())}
    encoding = tiktoken.Encoding("peer", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={"<|bos|>": vocab})
    texts = _read_texts(folder)
    chunks = [texts[first : first + PEER_CHUNK] for first in range(0, len(texts), PEER_CHUNK)]
    return _timed(lambda: [encoding.encode_ordinary_batch(chunk, num_threads=cores) for chunk in chunks])


MEASURED = {
    "ours_train": _ours_train,
    "ours_encode": _ours_encode,
    "peer_train": _peer_train,
    "peer_encode": _peer_encode,
}


def _write_texts(folder: Path) -> int:
    """Every readable module of the standard library, its tests too; returns their bytes."""
    library = Path(sysconfig.get_paths()["stdlib"])
    size = 0
    for path in sorted(library.rglob("*.py")):
        if "site-packages" in path.parts:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        size += (folder / f"{size:012}.txt").write_bytes(text.encode("utf-8"))
    return size


def _read_texts(folder: Path) -> list[str]:
    return [path.read_bytes().decode("utf-8") for path in sorted(folder.glob("*.txt"))]


def _has_peer(python: str) -> bool:
    try:
        return subprocess.run([python, "-c", "import rustbpe, tiktoken"], capture_output=True).returncode == 0
    except OSError:
        return False


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has rustbpe and tiktoken")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--one", choices=MEASURED, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.vocab = arguments.vocab or [8_192, 32_768]
    return arguments


if __name__ == "__main__":
    main()
