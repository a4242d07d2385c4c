"""How fast `lineage verify` reads and hashes a model, against `sha256sum` on the same files.

    .venv/bin/python benchmarks/verify.py [--megabytes 500] [--rounds 5] [--folder DIR]

A store in a folder is filled with one record of files of mixed sizes (a large one, then halves of what is left). All
sides read the same bytes in turn, from the page cache if they fit: `sha256sum` as one process, as one a file on all
cores, and where it is installed `openssl dgst`, because coreutils do not use the processor's SHA instructions
everywhere, while OpenSSL and Python do. The last line is one JSON document: megabytes per second of each (median, and
each round), how many times as fast `verify` is, the peak memory of this process, and the load.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from artifacts.lineage import verify
from artifacts.records import Fingerprint, Record
from artifacts.repository import Repository, blob_name, record_name
from artifacts.store import open_store

SMALLEST_BYTES = 1 << 14
CHUNK_BYTES = 1 << 20


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="nanocode-verify-", dir=arguments.folder) as folder:
        print(json.dumps(measure(Path(folder), arguments.megabytes * 1_000_000, arguments.rounds)))  # noqa: T201


def measure(folder: Path, size: int, rounds: int) -> dict[str, Any]:
    """Fill a store with `size` bytes and time each way of hashing it, one after the other in each round."""
    load_before = os.getloadavg()[0]
    repository = Repository(open_store("file:store", folder))
    record = _fill(repository, folder / "source", size)
    blobs = [str(folder / "store" / blob_name(entry.sha256)) for entry in record.files]
    cores = os.cpu_count() or 1
    ways: dict[str, Callable[[], Any]] = {
        "verify": lambda: _verified(repository, record.digest),
        "sha256sum": lambda: _run(["sha256sum", *blobs]),
        "sha256sum_parallel": lambda: _run(["xargs", "-P", str(cores), "-n", "1", "sha256sum"], "\n".join(blobs)),
    }
    if shutil.which("openssl"):
        ways["openssl"] = lambda: _run(["openssl", "dgst", "-sha256", *blobs])
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            speeds[name].append(round(size / 1e6 / (time.perf_counter() - started), 1))
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    return {
        "benchmark": "verify",
        "megabytes": size / 1e6,
        "files": len(record.files),
        "megabytes_per_second": medians,
        "rounds": speeds,
        "times_as_fast_as": {name: round(medians["verify"] / medians[name], 2) for name in ways if name != "verify"},
        "peak_rss_megabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3, 1),
        "cores": cores,
        "load": {"before": load_before, "after": os.getloadavg()[0]},
    }


def sizes(total: int) -> Iterator[int]:
    """A file of half the bytes, one of half of what is left, and so on: weights, shards and small reports."""
    while total > SMALLEST_BYTES:
        yield total - total // 2
        total //= 2
    yield total


def _fill(repository: Repository, source: Path, size: int) -> Record:
    source.mkdir()
    for index, each in enumerate(sizes(size)):
        with (source / f"{index:04}.bin").open("wb") as file:
            for start in range(0, each, CHUNK_BYTES):
                file.write(os.urandom(min(CHUNK_BYTES, each - start)))
    record = Record(
        "model", "benchmark", "made-up", tuple(repository.put_folder(source)), {}, {}, Fingerprint("0" * 64, {})
    )
    repository.store.put_bytes(record_name(record.digest), record.to_json())
    return record


def _verified(repository: Repository, record: str) -> None:
    faults = verify(repository, record)
    if faults:
        raise SystemExit(f"the store is broken: {faults[0].message}")


def _run(command: list[str], given: str | None = None) -> None:
    subprocess.run(command, input=given, text=True, stdout=subprocess.DEVNULL, check=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="where the store is made; default: the system's")
    return parser.parse_args()


if __name__ == "__main__":
    main()
