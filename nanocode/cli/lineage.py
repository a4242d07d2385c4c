"""Show and check what a model was made from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
from rich.tree import Tree

from artifacts import lineage
from artifacts.releases import resolve_record
from artifacts.repository import Repository
from nanocode.cli.context import StoreOption, open_repository

app = typer.Typer(no_args_is_help=True, help=__doc__, add_completion=False)

Model = Annotated[str, typer.Argument(help="A release (nano, nano@3) or the first digits of any record's digest.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]


@app.command()
def show(context: typer.Context, model: Model, as_json: AsJson = False, store: StoreOption = None) -> None:
    """Print the tree from a model version down to its raw sources.

    Each line: what it is to the line above, the stage that made it, its record's digest, size, config and the latest
    making.
    """
    source = open_repository(store or context.obj.store)
    root = lineage.tree(source, resolve_record(source, model))
    if as_json:
        typer.echo(json.dumps(asdict(root)))
    else:
        Console(highlight=False).print(_branch(root))


@app.command()
def verify(context: typer.Context, model: Model, as_json: AsJson = False, store: StoreOption = None) -> None:
    """Re-read and re-hash everything a model was made from; exit 1 when anything is not what its record says.

    Records, inputs, blobs, cache keys, provenance and releases are checked; each fault is named with its object.
    """
    source = open_repository(store or context.obj.store)
    record = resolve_record(source, model)
    faults = _verify(source, record, quiet=as_json)
    reached = lineage.reach(source, record)
    size = sum(entry.bytes for entry in reached.files)
    if as_json:
        counts = {"records": len(reached.records), "blobs": len(reached.files), "bytes": size}
        verdict = {"model": model, "record": record, "ok": not faults}
        typer.echo(json.dumps(verdict | counts | {"faults": [asdict(fault) for fault in faults]}))
    else:
        for fault in faults:
            typer.echo(f"{fault.kind}: {fault.message} [{fault.object}]")
        told = "all true" if not faults else f"{len(faults)} fault(s)"
        checked = f"{len(reached.records)} records, {len(reached.files)} blobs, {_size(size)}"
        typer.echo(f"{model} ({record[:12]}): {checked}: {told}")
    if faults:
        raise typer.Exit(1)


def _verify(source: Repository, record: str, quiet: bool) -> list[lineage.Fault]:
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet) as bar:
        task = bar.add_task("verify", total=None)
        return lineage.verify(source, record, lambda done, total: bar.update(task, completed=done, total=total))


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
    config = _settings(node.config)
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
