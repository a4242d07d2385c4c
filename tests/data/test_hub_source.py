"""The Hub kind through the real `datasets` library, from a local server that speaks the Hub's protocol and fails."""

from __future__ import annotations

import io
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from failing_server import FailingHandler

from nanocode.config import HubSource

ROOT = Path(__file__).parents[2]
REVISION = "5" * 40
SHARDS, ROWS = 3, 1_200

# The client takes the Hub's address from the environment when it is imported: every test is a process of its own.
READER = """
import json, os, sys, urllib.request
from pathlib import Path
import datasets
from nanocode.config import HubSource
from nanocode.data import hub_source
from nanocode.data.documents import SourceError
from nanocode.data.reading import Reading, Retry
hub_source.BLOCK_ROWS = 500
datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0.1  # seconds, at the end of each stream; else 5

def read(source, start, faults):
    left = urllib.request.urlopen(os.environ["HF_ENDPOINT"] + "/faults", json.dumps(faults).encode()).read()
    lines, pauses, blocks, error = [], [], [], None
    reading = Reading(Retry(3, lines.append, pauses.append), Path("."))
    try:
        for block in hub_source.hub_blocks(HubSource.model_validate(source), reading, start):
            rows = [[row.origin, row.content, row.licence, row.fault] for row in block.documents]
            blocks.append([rows, json.loads(json.dumps(block.after))])
    except SourceError as failure:
        error = str(failure)
    left = json.load(urllib.request.urlopen(os.environ["HF_ENDPOINT"] + "/faults", b"[]"))
    return {"blocks": blocks, "error": error, "lines": lines, "pauses": pauses, "faults_left": left}

outcomes = []
for source, after_block, faults in json.load(sys.stdin):
    start = outcomes[0]["blocks"][after_block - 1][1] if after_block else None
    outcomes.append(read(source, start, faults))
print(json.dumps(outcomes))
"""


class Hub(FailingHandler):
    """One dataset, o/n, at one revision. `faults` is a list of what happens to the next downloads, in order."""

    files: dict[str, bytes]
    faults: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if re.fullmatch(rf"/api/datasets/o/n/revision/{REVISION}", url.path):
            self.answer(200, json.dumps({"id": "o/n", "sha": REVISION, "siblings": [], "tags": []}).encode())
        elif url.path.startswith(f"/api/datasets/o/n/tree/{REVISION}"):
            folder = url.path.removeprefix(f"/api/datasets/o/n/tree/{REVISION}").strip("/")
            listing = self.tree(folder, parse_qs(url.query).get("recursive") == ["true"])
            self.answer(200 if listing else 404, json.dumps(listing).encode())
        elif (name := url.path.removeprefix(f"/datasets/o/n/resolve/{REVISION}/")) in self.files:
            self.download(self.files[name])
        else:
            self.answer(
                404, b"{}", {"X-Error-Code": "RepoNotFound" if url.path.startswith("/api") else "EntryNotFound"}
            )

    def do_POST(self) -> None:
        """Sets the faults to come; answers with those that nothing met."""
        left = json.dumps(self.faults).encode()
        self.faults[:] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(200, left)

    def tree(self, folder: str, recursive: bool) -> list[dict[str, Any]]:
        entries: dict[str, dict[str, Any]] = {}
        for name, data in self.files.items():
            inside = name.removeprefix(f"{folder}/" if folder else "")
            if folder and inside == name:
                continue
            if "/" in inside:
                parent = name[: len(name) - len(inside)] + inside.partition("/")[0]
                entries[parent] = {"type": "directory", "path": parent, "oid": "0" * 40, "size": 0}
            if "/" not in inside or recursive:
                entries[name] = {"type": "file", "path": name, "oid": "0" * 40, "size": len(data)}
        return list(entries.values())

    def download(self, data: bytes) -> None:
        headers = {"ETag": '"e"', "X-Repo-Commit": REVISION, "Accept-Ranges": "bytes"}
        wanted = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if self.command == "HEAD" or wanted is None:
            self.answer(200, data, headers)
            return
        first, last = int(wanted[1]), min(int(wanted[2] or len(data)), len(data) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        body = data[first : last + 1]
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "503":
            self.answer(503, b"busy")
        elif fault == "403":
            self.answer(403, b"no")
        elif fault == "cut":
            self.answer(206, body, headers, send=len(body) // 2)
        elif fault == "torn":
            self.answer(206, body[: len(body) // 2], headers)
        else:
            self.answer(206, body, headers)


@pytest.fixture
def hub(serve: Any) -> Iterator[tuple[type[Hub], str]]:
    handler = type("Hub", (Hub,), {"files": {}, "faults": []})
    for shard in range(SHARDS):
        sink = io.BytesIO()
        noise = random.Random(shard)
        rows = [f"shard {shard} row {number} " + noise.randbytes(40).hex() for number in range(ROWS)]
        licences = [["MIT"] if number % 3 else ["GPL-3.0"] for number in range(ROWS)]
        pq.write_table(pa.table({"text": rows, "licences": licences}), sink, row_group_size=100)
        handler.files[f"data/train-{shard:05d}.parquet"] = sink.getvalue()
    yield handler, serve(handler)


def source(**changes: Any) -> dict[str, Any]:
    values = {"name": "web", "register_as": "text", "kind": "hub", "dataset": "o/n", "licence": "ODC-By-1.0"}
    return values | {"revision": REVISION} | changes


def read(address: str, folder: Path, *requests: tuple[dict[str, Any], int, list[str]]) -> list[dict[str, Any]]:
    """The outcome of each request: a source, the block of the first outcome to start after, and the faults to come."""
    done = subprocess.run(
        [sys.executable, "-c", READER],
        input=json.dumps(requests),
        env={
            "PYTHONPATH": str(ROOT),
            "PATH": os.environ["PATH"],
            "HF_ENDPOINT": address,
            "HF_HOME": str(folder / "hf"),
        },
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def rows_of(outcome: dict[str, Any], after_block: int = 0) -> list[list[Any]]:
    return [row for rows, _ in outcome["blocks"][after_block:] for row in rows]


LICENSED = source(licence_column="licences", licences=["MIT"])
STARTS = (3, 5, 8)
TORN = ["", "", "", "torn", "", "", "torn"]


def test_a_stream_goes_on_after_any_block_and_after_a_fault_as_if_it_had_not_stopped(
    hub: tuple[type[Hub], str], tmp_path: Path
) -> None:
    """One process for all: most of the time goes into importing the library."""
    requests = [(LICENSED, after, []) for after in (0, *STARTS)] + [
        (LICENSED, 0, TORN),
        (source(text_column="*"), 0, []),
    ]
    whole, *rests, broken, starred = read(hub[1], tmp_path, *requests)
    rows = rows_of(whole)
    assert whole["error"] is None and len(rows) == SHARDS * ROWS == len({text for _, text, _, _ in rows})
    assert sorted(int(origin.partition("#")[2]) for origin, *_ in rows) == list(range(SHARDS * ROWS))
    assert rows[0][0].startswith(f"o/n/default/train@{REVISION}#")
    assert {text[:7] for _, text, _, _ in rows[:400]} == {"shard 0", "shard 1", "shard 2"}, "the head samples all files"
    assert {(licence, fault) for _, _, licence, fault in rows} == {("MIT", None), ("GPL-3.0", "licence_not_allowed")}
    assert [rows_of(rest) for rest in rests] == [rows_of(whole, after) for after in STARTS]
    assert (rows_of(broken), broken["error"], broken["faults_left"]) == (rows, None, [])
    tables = {origin: json.loads(row) for origin, row, _, _ in rows_of(starred)}
    assert {origin: table["text"] for origin, table in tables.items()} == {origin: text for origin, text, _, _ in rows}
    assert {tuple(table) for table in tables.values()} == {("text", "licences")}
    assert 1 <= len(broken["pauses"]) <= TORN.count("torn"), "two files torn at once cost one attempt"


@pytest.mark.slow  # the client's own pauses
@pytest.mark.parametrize("faults", [["", "503"], ["", "", "", "", "cut"]])
def test_a_server_that_is_busy_or_hangs_up_changes_nothing(
    hub: tuple[type[Hub], str], tmp_path: Path, faults: list[str]
) -> None:
    whole, again = read(hub[1], tmp_path, (source(), 0, []), (source(), 0, faults))
    assert again["faults_left"] == [], "every fault was met"
    assert rows_of(again) == rows_of(whole) and again["error"] is None


@pytest.mark.slow
def test_patience_has_an_end(hub: tuple[type[Hub], str], tmp_path: Path) -> None:
    name = "data/train-00001.parquet"
    hub[0].files[name] = hub[0].files[name][:-600]
    [outcome] = read(hub[1], tmp_path, (source(), 0, []))
    assert re.search(r"data source 'web': o/n at 5+: .*; gave up after 3 attempts", outcome["error"])
    assert outcome["pauses"] == [1, 2] and len(outcome["lines"]) == 2
    assert "\n" not in outcome["error"]


@pytest.mark.slow
def test_what_no_attempt_can_change_is_said_at_once(hub: tuple[type[Hub], str], tmp_path: Path) -> None:
    unreadable = "cannot be read: .*; check the name, the split"
    wrong = [
        (source(text_column="body"), [], "has no column 'body'; set text_column to one of: licences, text"),
        (source(licence_column="license"), [], "has no column 'license'; set licence_column to one of"),
        (source(split="nowhere"), [], unreadable),
        (source(dataset="o/absent"), [], unreadable),
        (source(), ["403"], unreadable),
    ]
    outcomes = read(hub[1], tmp_path, *((request, 0, faults) for request, faults, _ in wrong))
    for outcome, (_, _, message) in zip(outcomes, wrong, strict=True):
        assert re.search(message, outcome["error"]) and "\n" not in outcome["error"]
        assert outcome["pauses"] == []


@pytest.mark.parametrize("revision", [None, "main", "v1.0", "5" * 39])
def test_a_commit_is_required(revision: str | None) -> None:
    values = {"name": "w", "register_as": "text", "kind": "hub", "dataset": "d", "licence": "x"}
    with pytest.raises(ValueError, match="revision"):
        HubSource.model_validate(values | ({"revision": revision} if revision else {}))
