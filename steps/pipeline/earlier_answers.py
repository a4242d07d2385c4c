"""Where answers that were paid for may lie: ledgers of this machine, checkpoints of unfinished keys, finished records.

A stage's key changes with its code and its config; most of its requests do not. What they were answered is looked up
before an endpoint is asked. A ledger of this machine is removed when a record in the store holds all of it.
"""

from __future__ import annotations

import gzip
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from artifacts.build import Build, cache_key
from artifacts.checkpoints import CheckpointStore
from artifacts.explain import KeyIndex
from artifacts.records import ArtifactError, Record, read_json
from artifacts.repository import Repository, blob_name, fetch_files
from artifacts.store import MissingObject
from nanocode.constitution.answer_table import answer_of
from nanocode.constitution.append_file import LedgerError, whole_records
from nanocode.constitution.earlier import Source, open_answers
from steps.pipeline.answers import CALLS, LEDGERS, ledgers_folder, restored
from steps.pipeline.run import Run

_ATTEMPT = re.compile(r"ckpt/([0-9a-f]+)/attempts/\d+\.json")


def earlier_answers(run: Run, making: Build) -> list[Source]:
    """Ledger files in which to look before an endpoint is asked; none where the embedded teacher plays all parts.

    Of this machine, those of other keys; of the store, what attempts at this artifact under other keys had saved, and
    the record that is nearest to it. Copies lie in the stage's scratch folder.
    """
    tidy_ledgers(run, making.key)
    constitution = run.config.constitution
    if all(part.base_url is None for part in (constitution.generator, constitution.critic, constitution.reviser)):
        return []
    copies = making.scratch / "earlier"
    copies.mkdir()
    return [*_of_nearest_record(run, making, copies), *_of_this_machine(run, making), *_unfinished(run, making, copies)]


def tidy_ledgers(run: Run, own_key: str = "") -> None:
    """Remove ledgers of this machine whose key has a record that holds every one of their answers, and say so.

    Answers that are nowhere else stay, with a word about it.
    """
    for folder in sorted(ledgers_folder(run).glob("*")):
        record = run.repository.find(folder.name) if folder.name != own_key and any(folder.glob(LEDGERS)) else None
        if record is None:
            continue
        with TemporaryDirectory(dir=run.work) as scratch:
            calls = _calls(run.repository, record, Path(scratch))
            try:
                lacking, held = _lacking(folder, calls)
            except FileNotFoundError:  # its owner is at the same
                continue
            except LedgerError as error:
                run.say(f"{folder}: kept: {error}")
                continue
        if lacking:
            run.say(f"{folder}: kept, for {lacking:,} of its {held:,} answers are in no record")
        else:
            shutil.rmtree(folder, ignore_errors=True)
            run.say(f"{folder}: removed, its {held:,} answers are in record {record.digest[:12]} ({record.name})")


def _lacking(folder: Path, calls: Path | None) -> tuple[int, int]:
    """How many answers of a folder's ledgers a record's calls do not hold, and how many there are."""
    held = lacking = 0
    with ExitStack() as stack:
        known = None if calls is None else stack.enter_context(open_answers(calls))
        for ledger in sorted(folder.glob(LEDGERS)):
            for _, record in whole_records(ledger):
                held += 1
                lacking += known is None or known.answer(answer_of(record, ledger).key) is None
    return lacking, held


def _of_this_machine(run: Run, making: Build) -> Iterator[Source]:
    for folder in sorted(ledgers_folder(run).glob("*")):
        if folder.name != making.key:
            yield from (Source(path, counted=False) for path in sorted(folder.glob(LEDGERS)))


def _unfinished(run: Run, making: Build, folder: Path) -> Iterator[Source]:
    """What attempts at the same artifact under other keys left in the store."""
    store = run.repository.store
    attempts = {match[1]: name for name in store.list("ckpt/") if (match := _ATTEMPT.fullmatch(name))}
    for key, name in sorted(attempts.items()):
        checkpoints = CheckpointStore(store, key)
        try:
            if key == making.key or read_json(store.read(name), name).get("name") != making.stage.name:
                continue
            saved = checkpoints.latest()
            if saved is not None:
                whole = restored(checkpoints, saved, folder / key)
                yield from (Source(path, counted=False) for path in sorted(whole.glob(LEDGERS)))
        except (ArtifactError, MissingObject) as error:  # its owner may be at work on it, or done
            run.say(f"{making.stage.step}: answers of an unfinished attempt cannot be read: {error}")


def _of_nearest_record(run: Run, making: Build, folder: Path) -> Iterator[Source]:
    _, payload = cache_key(run.repository, making.stage, run.root)
    nearest = KeyIndex(run.repository).nearest(payload, making.stage.name)
    record = None if nearest is None else run.repository.find(nearest.key)
    calls = None if record is None else _calls(run.repository, record, folder)
    if calls is not None:
        yield Source(calls, counted=True)


def _calls(repository: Repository, record: Record, folder: Path) -> Path | None:
    """A record's calls as a ledger file, None when it has none."""
    entries = [entry for entry in record.files if entry.path == CALLS]
    if not entries:
        return None
    fetch_files(repository.store, entries, folder, blob_name)
    plain = folder / "calls.jsonl"
    with gzip.open(folder / CALLS) as compressed, plain.open("wb") as file:
        shutil.copyfileobj(compressed, file)
    return plain
