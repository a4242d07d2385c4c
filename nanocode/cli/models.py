"""`nanocode models`: what has been released."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from artifacts.releases import Release, list_releases
from nanocode.cli.context import StoreOption, open_repository


def models(
    context: typer.Context,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON list: name, version, digest, created, metrics.")
    ] = False,
    store: StoreOption = None,
) -> None:
    """List the released model versions: name, digest, date, key metrics.

    Use a name (`nano`), a version (`nano@3`) or the first digits of a digest wherever a command takes MODEL.
    """
    source = open_repository(store or context.obj.store)
    releases = list_releases(source)
    if as_json:
        typer.echo(json.dumps([_plain(release) for release in releases]))
    elif not releases:
        typer.echo(f"Nothing released in {source.store.url} yet: `nanocode run` trains and releases the first model.")
    else:
        Console().print(_table(releases))


def _plain(release: Release) -> dict[str, Any]:
    return {
        "name": release.name,
        "version": release.version,
        "digest": release.record,
        "created": release.created,
        "metrics": release.metrics,
    }


def _table(releases: list[Release]) -> Table:
    table = Table("model", "digest", "released", "metrics", box=None, header_style="bold")
    for release in releases:
        name = f"{release.name}@{release.version}"
        table.add_row(name, release.record[:12], release.created, _summary(release.metrics))
    return table


def _summary(metrics: Mapping[str, Any]) -> str:
    """The scalar metrics, as `name value`; nested ones are left to `--json`."""
    shown = {name: value for name, value in metrics.items() if isinstance(value, (int, float, str))}
    return "  ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in shown.items()
    )
