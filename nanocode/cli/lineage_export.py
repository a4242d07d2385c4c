"""`nanocode lineage export`: a model's lineage in the words of other tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from artifacts.costs import stage_costs
from artifacts.environments import environments
from artifacts.export.lineage import Lineage, load
from artifacts.releases import Release, UnknownModel, resolve, resolve_record
from artifacts.repository import Repository
from artifacts.signing import SigningError, read_signature, signature_name
from nanocode.cli.context import StoreOption, open_repository
from nanocode.cli.options import Model

NAMESPACE = "nanocode"


class Format(StrEnum):
    """What can be written."""

    OPENLINEAGE = "openlineage"
    CYCLONEDX = "cyclonedx"
    IN_TOTO = "in-toto"
    MERMAID = "mermaid"
    CARD = "card"
    SIGNATURE = "signature"


def export(
    context: typer.Context,
    model: Model,
    form: Annotated[
        Format,
        typer.Option(
            "--format",
            help="openlineage: run events, one JSON document a line. cyclonedx: ML bill of materials, 1.6 JSON. "
            "in-toto: statement with SLSA provenance v1. mermaid: flow chart. card: model card in Markdown. "
            "signature: the release's signature bundle, for `model_signing verify key`.",
        ),
    ],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; left out: stdout.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document: model, record, format, and the export as `content`.")
    ] = False,
    store: StoreOption = None,
) -> None:
    """Write a model's whole lineage for other tools and people.

    The same lineage gives the same bytes. Each export is checked by the types or the schema of its own standard;
    openlineage and cyclonedx need the extra `lineage`.
    """
    source = open_repository(store or context.obj.store)
    record = resolve_record(source, model)
    lineage = load(source, record, _release(source, model))
    text = _WRITERS[form](source, lineage)
    if as_json:
        content = json.loads(text) if form in _DOCUMENTS else text
        text = json.dumps({"model": model, "record": record, "format": form.value, "content": content}) + "\n"
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
        typer.echo(f"{form.value} of {lineage.title} ({record[:12]}): {output}, {len(text.encode()):,} bytes", err=True)


def _release(source: Repository, model: str) -> Release | None:
    try:
        return resolve(source, model)
    except UnknownModel:
        return None  # a record that was never released has a lineage, too


def _openlineage(source: Repository, lineage: Lineage) -> str:
    from artifacts.export.openlineage import openlineage
    from nanocode.cli.meaning import rows

    return openlineage(lineage, NAMESPACE, rows)


def _cyclonedx(source: Repository, lineage: Lineage) -> str:
    from artifacts.export.cyclonedx import cyclonedx
    from nanocode.cli.meaning import meaning

    return _json(cyclonedx(lineage, meaning(lineage)))


def _in_toto(source: Repository, lineage: Lineage) -> str:
    from artifacts.export.in_toto import in_toto

    return _json(in_toto(lineage))


def _mermaid(source: Repository, lineage: Lineage) -> str:
    from artifacts.export.mermaid import mermaid

    return mermaid(lineage)


def _card(source: Repository, lineage: Lineage) -> str:
    from nanocode.cli.model_card import model_card

    steps = {digest: part.record.step for digest, part in lineage.parts.items()}
    signed = None if lineage.release is None else read_signature(source, lineage.release)
    costs = stage_costs(source, lineage.top.digest)
    return model_card(lineage, costs, environments(source, steps), None if signed is None else signed.key)


def _signature(source: Repository, lineage: Lineage) -> str:
    release = lineage.release
    if release is None or read_signature(source, release) is None:
        raise SigningError(f"{lineage.title} is not signed: `nanocode models sign MODEL --key FILE` signs a release")
    return source.store.read(signature_name(release)).decode()


def _json(document: object) -> str:
    return json.dumps(document, indent=2) + "\n"


_DOCUMENTS = (Format.CYCLONEDX, Format.IN_TOTO, Format.SIGNATURE)
_WRITERS: dict[Format, Callable[[Repository, Lineage], str]] = {
    Format.OPENLINEAGE: _openlineage,
    Format.CYCLONEDX: _cyclonedx,
    Format.IN_TOTO: _in_toto,
    Format.MERMAID: _mermaid,
    Format.CARD: _card,
    Format.SIGNATURE: _signature,
}
