"""How fast folders go into a store and come back, against plain copies of the same files in the same run.

    .venv/bin/python benchmarks/store.py [--megabytes 256] [--rounds 3] [--only file|s3]

Files of mixed sizes: half of the bytes in files of 64 MB, a quarter in files of 4 MB, a quarter in files of 256 kB.
For `file` the plain way is a copy by shutil, and one whose bytes are flushed to the disk, which is what a store
promises. For `s3` it is boto3's upload_file and download_file with as many files at a time, both to the same SeaweedFS
on this machine. A store hashes every file before and while it is stored, and after it was fetched. The last line is one
JSON document.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from artifacts.repository import TRANSFERS, Repository, blob_name, fetch_files
from artifacts.store import open_store
from tests.servers import seaweedfs

SIZES = ((64_000_000, 0.5), (4_000_000, 0.25), (256_000, 0.25))

Action = Callable[[], object]


def main() -> None:
    arguments = _arguments()
    load_before = os.getloadavg()[0]
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="nanocode-store-", dir=arguments.folder) as folder:
        root = Path(folder)
        total = write_files(root / "source", arguments.megabytes * 1_000_000)
        for kind, setting in (("file", over_file), ("s3", over_s3)):
            if arguments.only in (None, kind):
                with setting(root) as make_round:
                    results[kind] = measure(make_round, arguments.rounds, total)
    document = {
        "benchmark": "store",
        "bytes": total,
        "rounds": arguments.rounds,
        "megabytes_per_second": results,
        "cores": os.cpu_count(),
        "load": [load_before, os.getloadavg()[0]],
    }
    print(json.dumps(document))  # noqa: T201


def measure(make_round: Callable[[int], dict[str, Action]], rounds: int, total: int) -> dict[str, Any]:
    """Run every action of every round, the order turned round each time; speeds, and those of the store as shares."""
    speeds: dict[str, list[float]] = {}
    for number in range(rounds):
        actions = list(make_round(number).items())
        pairs = [actions[start : start + 2] for start in range(0, len(actions), 2)]  # a put and its fetch
        for name, action in (each for pair in (pairs[::-1] if number % 2 else pairs) for each in pair):
            os.sync()
            started = time.perf_counter()
            action()
            speeds.setdefault(name, []).append(total / 1e6 / (time.perf_counter() - started))
            print(f"{number + 1} of {rounds}  {name:<20} {speeds[name][-1]:8.0f} MB/s", flush=True)  # noqa: T201
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    shares = {
        f"{name} / store {way}": statistics.median(
            ours / theirs for ours, theirs in zip(speeds[f"store {way}"], speeds[name], strict=True)
        )
        for name in speeds
        for way in ("put", "fetch")
        if name.endswith(way) and not name.startswith("store")
    }
    return {
        "median": {name: round(value, 1) for name, value in medians.items()},
        "spread": {name: [round(min(values), 1), round(max(values), 1)] for name, values in speeds.items()},
        "store_share_of": {name.partition(" / ")[0]: round(value, 2) for name, value in shares.items()},
    }


@contextlib.contextmanager
def over_file(root: Path) -> Iterator[Callable[[int], dict[str, Action]]]:
    """A folder store, plain copies, and copies that are on the disk when they are done."""

    def actions(number: int) -> dict[str, Action]:
        own = root / f"file-{number}"
        return {
            **store_actions(root, f"file:{own / 'store'}", own / "fetched"),
            "copy put": functools.partial(shutil.copytree, root / "source", own / "copied"),
            "copy fetch": functools.partial(shutil.copytree, own / "copied", own / "back"),
            "flushed copy put": functools.partial(flushed_copy, root / "source", own / "flushed"),
            "flushed copy fetch": functools.partial(shutil.copytree, own / "flushed", own / "back-2"),
        }

    yield actions
    for path in root.glob("file-*"):
        shutil.rmtree(path)


@contextlib.contextmanager
def over_s3(root: Path) -> Iterator[Callable[[int], dict[str, Action]]]:
    """A store in SeaweedFS on this machine, and boto3's own transfers to and from it."""
    import boto3

    with seaweedfs(root / "seaweedfs") as server:
        os.environ.update(server.environment)
        client = boto3.Session().client("s3")
        files = sorted(path for path in (root / "source").rglob("*") if path.is_file())

        def upload(number: int) -> None:
            with ThreadPoolExecutor(TRANSFERS) as pool:
                list(pool.map(lambda path: client.upload_file(path, server.bucket, f"{number}/{path.name}"), files))

        def download(number: int) -> None:
            target = root / f"s3-{number}" / "plain"
            target.mkdir(parents=True)
            with ThreadPoolExecutor(TRANSFERS) as pool:
                get = functools.partial(client.download_file, server.bucket)
                list(pool.map(lambda path: get(f"{number}/{path.name}", str(target / path.name)), files))

        def actions(number: int) -> dict[str, Action]:
            return {
                **store_actions(root, f"s3://{server.bucket}/store-{number}", root / f"s3-{number}" / "fetched"),
                "boto3 put": functools.partial(upload, number),
                "boto3 fetch": functools.partial(download, number),
            }

        yield actions


def store_actions(root: Path, url: str, target: Path) -> dict[str, Action]:
    """Put the source into an empty store, and fetch it."""
    repository = Repository(open_store(url))
    entries: list[Any] = []
    return {
        "store put": lambda: entries.extend(repository.put_folder(root / "source")),
        "store fetch": lambda: fetch_files(repository.store, entries, target, blob_name),
    }


def write_files(folder: Path, total: int) -> int:
    """Files of mixed sizes, all different, of about `total` bytes; returns the bytes."""
    folder.mkdir()
    draw, written = random.Random(1), 0
    for size, share in SIZES:
        for number in range(max(1, round(total * share / size))):
            (folder / f"{size}-{number}").write_bytes(draw.randbytes(size))
            written += size
    os.sync()
    return written


def flushed_copy(source: Path, target: Path) -> None:
    """Copy files and wait for the disk after each."""
    target.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        with path.open("rb") as original, (target / path.name).open("wb") as copy:
            shutil.copyfileobj(original, copy, 1 << 20)
            copy.flush()
            os.fsync(copy.fileno())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("file", "s3"))
    parser.add_argument("--folder", type=Path, help="where to work (default: the system's folder for temporary files)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
