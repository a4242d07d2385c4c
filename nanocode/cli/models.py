"""List the released model versions, or sign one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from artifacts.releases import Release, list_releases, resolve
from artifacts.signing import read_signature, sign
from nanocode.cli.context import StoreOption, open_repository

PASSWORD_VARIABLE = "NANOCODE_KEY_PASSWORD"

app = typer.Typer(help=__doc__, add_completion=False)


@app.callback(invoke_without_command=True)
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
    if context.invoked_subcommand is not None:
        context.obj.store = store or context.obj.store
        return
    source = open_repository(store or context.obj.store)
    releases = list_releases(source)
    if as_json:
        typer.echo(json.dumps([_plain(release) for release in releases]))
    elif not releases:
        typer.echo(f"Nothing released in {source.store.url} yet: `nanocode run` trains and releases the first model.")
    else:
        Console().print(_table(releases))


@app.command("sign")
def sign_release(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="A release: nano for the latest version, nano@3 for version 3.")],
    key: Annotated[Path, typer.Option("--key", help="EC private key in PEM (P-256, P-384 or P-521).")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document: model, record, signature, key.")] = False,
    store: StoreOption = None,
) -> None:
    """Sign a release; the signature is kept beside it and `nanocode lineage verify --public-key FILE` checks it.

    What is signed are the hashes of its files, its record and the release itself: no file is read. The format is that
    of OpenSSF model signing, so `model_signing verify key` checks a downloaded model against it as well. A key with a
    password takes it from NANOCODE_KEY_PASSWORD. Needs the extra `signing`.
    """
    source = open_repository(store or context.obj.store)
    release = resolve(source, model)
    name = sign(source, release, key, os.environ.get(PASSWORD_VARIABLE))
    signed = read_signature(source, release)
    label, key_id = f"{release.name}@{release.version}", signed.key if signed else ""
    if as_json:
        typer.echo(json.dumps({"model": label, "record": release.record, "signature": name, "key": key_id}))
    else:
        typer.echo(f"{label} ({release.record[:12]}) is signed with key {key_id[:16]}: {name}")


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
