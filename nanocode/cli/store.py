"""See what a store holds, free what nobody needs, copy models between stores."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from artifacts.collect import DAY, Collector, Garbage, Policy
from artifacts.copying import copy_record, copy_release
from artifacts.inventory import Inventory, Looker
from artifacts.pins import list_pins, pin, unpin
from artifacts.releases import UnknownModel, resolve, resolve_record
from artifacts.repository import Repository
from artifacts.store import StoreSettings
from artifacts.usage import Room, room
from nanocode.cli.context import StoreOption, open_repository, project_root, warn
from nanocode.cli.options import MODEL_HELP, AsJson, Model
from nanocode.config import ConfigError

app = typer.Typer(no_args_is_help=True, help=__doc__, add_completion=False)

KeepDays = Annotated[float, typer.Option("--keep-days", min=0.0, help="Keep what was made or found so lately.")]

SHOWN_LABELS = 3
WIDTH_OF_LOGS = 160
_UNITS = ("kB", "MB", "GB", "TB")


@app.command("ls")
def list_records(
    context: typer.Context,
    step: Annotated[str | None, typer.Option(help="Only records of this stage, such as pretrain.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only artifacts of this kind, such as model.")] = None,
    keep_days: KeepDays = 7.0,
    as_json: AsJson = False,
    store: StoreOption = None,
) -> None:
    """List the records, newest first: stage, artifact, age, size, and who needs it.

    Needed is what releases (nano@3) and pins were made of, what is recent (--keep-days), and what a stage in progress
    reads. A record that nobody needs is what `nanocode store gc` deletes.
    """
    repository = open_repository(store or context.obj.store)
    now = time.time()
    inventory = Looker(repository, warn).look(now, keep_days * DAY)
    chosen = [
        digest
        for digest, record in inventory.records.items()
        if step in (None, record.step) and kind in (None, record.kind)
    ]
    rows = [_row(inventory, digest) for digest in sorted(chosen, key=lambda each: -inventory.finished[each])]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    table = Table("record", "stage", "artifact", "age", "size", "needed by", box=None, header_style="bold")
    for row in rows:
        age = _age(now - inventory.finished[row["record"]])
        needed = escape(_labels(row["needed_by"])) or "[dim]nobody[/dim]"
        table.add_row(row["record"][:12], row["step"], escape(row["name"]), age, size(row["bytes"]), needed)
    _console().print(table)


@app.command("du")
def disk_use(context: typer.Context, as_json: AsJson = False, store: StoreOption = None) -> None:
    """Say what takes the room: by stage and kind, checkpoints in progress, blobs that no record names, local cache.

    Equal files are stored once; what a stage shares with others is counted in each row and once in the sum.
    """
    repository = open_repository(store or context.obj.store)
    found = room(repository, Looker(repository, warn).look(time.time(), 0.0))
    cache = _folder_size(StoreSettings.chosen(os.environ, project_root()).cache)
    if as_json:
        typer.echo(json.dumps(asdict(found) | {"total": found.total, "cache": cache, "store": repository.store.url}))
    else:
        _print_room(found, cache, repository.store.url)


@app.command("gc")
def collect(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", help="Really delete. Without it, only say what would go.")] = False,
    keep_days: KeepDays = 7.0,
    grace_hours: Annotated[
        float, typer.Option("--grace-hours", help="Leave every object that was written so lately, whatever it is.")
    ] = 24.0,
    as_json: AsJson = False,
    store: StoreOption = None,
) -> None:
    """Delete what nobody needs. Says what would go, and deletes with --yes alone.

    Kept are releases and pins with all that they were made of, what was made or found within --keep-days, and what a
    stage in progress reads or saved. Safe beside running pipelines, and to interrupt: what is left verifies.
    """
    repository = open_repository(store or context.obj.store)
    collector = Collector(repository, _policy(keep_days, grace_hours), warn=warn)
    found = collector.find()
    deleted = collector.sweep(found) if yes and not found.is_empty else None
    if as_json:
        told = {"store": repository.store.url, "bytes": found.bytes, "deleted": deleted is not None}
        typer.echo(json.dumps(told | (deleted or found).kinds()))
    else:
        typer.echo("\n".join(_told(found, deleted, repository.store.url)))


@app.command("cp")
def copy(
    context: typer.Context,
    model: Model,
    to: Annotated[str, typer.Option("--to", help="The store to copy to: file:PATH, s3://BUCKET/PREFIX, ...")],
    as_json: AsJson = False,
    store: StoreOption = None,
) -> None:
    """Copy a model version with its whole lineage to another store, checked on the way.

    What is there already is not sent; the same command goes on after an interruption. A release keeps its number unless
    another model has it there: then it gets the next free one. A record that was not released arrives as a record.
    """
    source, target = open_repository(store or context.obj.store), open_repository(to)
    if source.store.url == target.store.url:
        raise ConfigError(f"--to {to} is the store that {model} is copied from: name another one")
    try:
        release = resolve(source, model)
    except UnknownModel:
        release = None
    record = release.record if release else resolve_record(source, model)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=as_json) as bar:
        task = bar.add_task("copy", total=None)
        work = project_root() / ".nanocode" / "work"
        copied = copy_record(
            source, target, record, work, lambda done, total: bar.update(task, completed=done, total=total)
        )
    version = copy_release(source, target, release) if release else None
    name = f"{release.name}@{version}" if release else record[:12]
    if as_json:
        typer.echo(json.dumps({"record": record, "model": name, "to": target.store.url} | asdict(copied)))
        return
    sent = f"{copied.sent} of {copied.blobs} blobs sent ({size(copied.bytes)}), the others were there"
    typer.echo(f"{model}: {copied.records} records, {sent}")
    number = "" if release is None or release.version == version else f", where {release.version} was not free"
    typer.echo(f"it is {name} in {target.store.url}{number}")


@app.command("pin")
def pin_model(
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(help=MODEL_HELP)] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the pin away.")] = False,
    show: Annotated[bool, typer.Option("--list", help="List the pins.")] = False,
    as_json: AsJson = False,
    store: StoreOption = None,
) -> None:
    """Keep a record that was not released, and all that it was made of, from `nanocode store gc`."""
    repository = open_repository(store or context.obj.store)
    if show or model is None:
        if not show:
            raise ConfigError("name what to pin, or ask for --list")
        _list_pins(repository, as_json)
        return
    record = resolve_record(repository, model)
    changed = (
        unpin(repository, record)
        if remove
        else pin(repository, record, model, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
    )
    if as_json:
        typer.echo(json.dumps({"record": record, "pinned": not remove, "changed": changed}))
        return
    state = ("unpinned" if changed else "was not pinned") if remove else ("pinned" if changed else "was pinned before")
    typer.echo(f"{model} ({record[:12]}): {state}")


def size(count: float) -> str:
    """Bytes for people."""
    if count < 1000:
        return f"{count:.0f} B"
    for unit in _UNITS:
        count /= 1000
        if count < 1000 or unit == _UNITS[-1]:
            break
    return f"{count:.1f} {unit}"


def _console() -> Console:
    """A log has no width of its own: there, names are not cut."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH_OF_LOGS, soft_wrap=True)


def _policy(keep_days: float, grace_hours: float) -> Policy:
    try:
        return Policy(keep_days * DAY, grace_hours * 3600)
    except ValueError as error:
        raise ConfigError(f"--grace-hours {grace_hours:g}: {error}") from None


def _row(inventory: Inventory, digest: str) -> dict[str, Any]:
    record = inventory.records[digest]
    return {
        "record": digest,
        "step": record.step,
        "kind": record.kind,
        "name": record.name,
        "made": f"{datetime.fromtimestamp(inventory.finished[digest], UTC):%Y-%m-%dT%H:%M:%SZ}",
        "bytes": record.total_bytes,
        "needed_by": sorted(inventory.needed.get(digest, ())),
    }


def _labels(labels: Sequence[str]) -> str:
    left = len(labels) - SHOWN_LABELS
    return ", ".join(labels[:SHOWN_LABELS]) + (f" and {left} more" if left > 0 else "")


def _age(seconds: float) -> str:
    for unit, length in (("d", DAY), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _print_room(found: Room, cache: int, url: str) -> None:
    table = Table("stage", "kind", "records", "size", "shared", box=None, header_style="bold")
    for usage in found.usages:
        shared = size(usage.shared) if usage.shared else ""
        table.add_row(usage.step, usage.kind, str(usage.records), size(usage.bytes), shared)
    console = _console()
    console.print(table)
    for key, (step, count) in found.in_progress.items():
        console.print(f"in progress: {step or 'a stage'} {key[:12]}, {size(count)}")
    if found.unnamed:
        console.print(f"named by no record: {size(found.unnamed)}")
    console.print(f"in all {size(found.total)} in {url}, equal files once; local cache {size(cache)}")


def _folder_size(folder: Path | None) -> int:
    if folder is None:
        return 0
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _told(found: Garbage, deleted: Garbage | None, url: str) -> Iterable[str]:
    if found.is_empty:
        yield f"nothing to collect in {url}"
        return
    yield f"{'deleted from' if deleted else 'would be deleted from'} {url}:"
    for kind, names in (deleted or found).kinds().items():
        if names:
            yield f"  {len(names):>8,} {kind}"
    yield f"  {size(found.bytes)} in all" if deleted is None else f"{size(found.bytes)} were found to be free"
    if deleted is None:
        yield "nothing was deleted: --yes deletes; `nanocode store ls` shows who needs what"


def _list_pins(repository: Repository, as_json: bool) -> None:
    pins = list_pins(repository)
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in pins]))
    for each in pins if not as_json else ():
        typer.echo(f"{each.record[:12]}  {each.asked}  since {each.created}")
