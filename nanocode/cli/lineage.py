"""Show and check what a model was made from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
from rich.tree import Tree

from artifacts import lineage
from artifacts.environments import environments
from artifacts.reach import Fault, reach
from artifacts.releases import resolve_record
from artifacts.repository import Repository
from artifacts.signing import read_signature, releases_of
from nanocode.cli.context import StoreOption, open_repository
from nanocode.cli.lineage_cost import cost
from nanocode.cli.lineage_diff import diff
from nanocode.cli.lineage_export import export
from nanocode.cli.options import AsJson, Model
from nanocode.cli.why import why

SHOWN_CHARACTERS = 240

app = typer.Typer(no_args_is_help=True, help=__doc__, add_completion=False)

app.command()(diff)
app.command()(cost)
app.command()(export)
app.command()(why)


@app.command()
def show(context: typer.Context, model: Model, as_json: AsJson = False, store: StoreOption = None) -> None:
    """Print the tree from a model version down to its raw sources.

    Each line: what it is to the line above, the stage that made it, its record's digest, size, config and the latest
    making.
    """
    source = open_repository(store or context.obj.store)
    record = resolve_record(source, model)
    root = lineage.tree(source, record)
    told = _environments(source, record)
    if as_json:
        typer.echo(json.dumps(asdict(root) | {"environments": told}))
        return
    Console(highlight=False).print(_branch(root))
    for line in told:
        typer.echo(f"note: {line}")


@app.command()
def verify(
    context: typer.Context,
    model: Model,
    public_key: Annotated[
        Path | None, typer.Option("--public-key", help="PEM file: the release must be signed, and with this key.")
    ] = None,
    as_json: AsJson = False,
    store: StoreOption = None,
) -> None:
    """Re-read and re-hash everything a model was made from; exit 1 when anything is not what its record says.

    Records, inputs, blobs, cache keys, provenance, releases and signatures are checked; each fault is named with its
    object. What is no fault but good to know is a note: parts made in different environments, a release that nobody
    signed, a signature that was not checked for want of a key.
    """
    source = open_repository(store or context.obj.store)
    record = resolve_record(source, model)
    faults = _verify(source, record, public_key, quiet=as_json)
    notes = _notes(source, record, faults, public_key)
    reached = reach(source, record)
    size = sum(entry.bytes for entry in reached.files)
    if as_json:
        counts = {"records": len(reached.records), "blobs": len(reached.files), "bytes": size}
        verdict = {"model": model, "record": record, "ok": not faults}
        typer.echo(json.dumps(verdict | counts | {"faults": [asdict(fault) for fault in faults], "notes": notes}))
    else:
        for note in notes:
            typer.echo(f"note: {note}")
        for fault in faults:
            typer.echo(f"{fault.kind}: {fault.message} [{fault.object}]")
        told = "all true" if not faults else f"{len(faults)} fault(s)"
        checked = f"{len(reached.records)} records, {len(reached.files)} blobs, {_size(size)}"
        typer.echo(f"{model} ({record[:12]}): {checked}: {told}")
    if faults:
        raise typer.Exit(1)


def _environments(source: Repository, record: str) -> list[str]:
    steps = {digest: each.step for digest, each in reach(source, record).records.items()}
    return environments(source, steps).describe()


def _notes(source: Repository, record: str, faults: list[Fault], public_key: Path | None) -> list[str]:
    """What is no fault; nothing is read again of which a fault says that it cannot be."""
    broken = {fault.kind for fault in faults}
    notes = [] if "altered-provenance" in broken else _environments(source, record)
    for release in releases_of(source, record):
        name = f"{release.name}@{release.version}"
        signed = None if "altered-signature" in broken else read_signature(source, release)
        if release.seal is None and signed is None:
            notes.append(f"{name} was released before releases were sealed: edits to it cannot be noticed")
        if signed is None and "altered-signature" not in broken:
            notes.append(f"{name} is not signed")
        elif signed is not None and public_key is None:
            notes.append(f"{name} is signed with key {signed.key[:16]}, which was not checked: give --public-key FILE")
    return notes


def _verify(source: Repository, record: str, public_key: Path | None, quiet: bool) -> list[Fault]:
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet) as bar:
        task = bar.add_task("verify", total=None)
        return lineage.verify(
            source, record, lambda done, total: bar.update(task, completed=done, total=total), public_key
        )


def _branch(node: lineage.Node) -> Tree:
    tree = Tree(_line(node))
    for each in node.inputs:
        tree.children.append(_branch(each))
    return tree


def _line(node: lineage.Node) -> str:
    role = f"{node.role}: " if node.role else ""
    head = f"{escape(role)}[bold]{escape(node.step)}[/bold] {escape(node.name)} [cyan]{node.record[:12]}[/cyan]"
    if node.repeated:
        return f"{head} (shown above)"
    lines = [f"{head}  {node.kind}, {node.files} file(s), {_size(node.bytes)}"]
    config = _shortened(_settings(node.config))
    if config:
        lines.append(f"[dim]{escape(config)}[/dim]")
    if node.made is not None:
        lines.append(f"[dim]{escape(_making(node.made))}[/dim]")
    return "\n".join(lines)


def _settings(config: Mapping[str, Any], prefix: str = "") -> str:
    """The config as `section.key=value`, scalars written out, lists counted."""
    parts = []
    for name, value in config.items():
        if isinstance(value, Mapping):
            parts.append(_settings(value, f"{prefix}{name}."))
        elif isinstance(value, list):
            parts.append(f"{prefix}{name}=[{_items(value)}]")
        elif value is not None:
            parts.append(f"{prefix}{name}={value}")
    return " ".join(part for part in parts if part)


def _shortened(text: str) -> str:
    """A release's config is the whole run's: a tree of such is no tree. `--json` has everything."""
    if len(text) <= SHOWN_CHARACTERS:
        return text
    return f"{text[:SHOWN_CHARACTERS].rpartition(' ')[0]} ... (--json shows all)"


def _items(values: list[Any]) -> str:
    return ", ".join(
        str(value.get("name", len(value))) if isinstance(value, Mapping) else str(value) for value in values
    )


def _making(made: lineage.Made) -> str:
    commit = made.git.get("commit")
    code = f"commit {commit[:12]}{' with local changes' if made.git.get('dirty') else ''}" if commit else "no checkout"
    versions = [
        f"{name} {made.environment[name]}" for name in ("python", "jax", "devices") if made.environment.get(name)
    ]
    again = f", made {made.times} times" if made.times > 1 else ""
    return f"made {made.finished}, {code}, {', '.join(versions)}{again}"


def _size(size: int) -> str:
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"
