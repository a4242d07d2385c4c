"""`nanocode lineage diff`: what sets two models apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated

import typer

from artifacts.compare import PARTS, RecordDifference, compare
from artifacts.differences import ABSENT, Difference
from artifacts.releases import resolve_record
from nanocode.cli.context import StoreOption, open_repository
from nanocode.cli.options import MODEL_HELP, AsJson

_TITLES = {"made_as": "made as", "environment": "environment"}


def diff(
    context: typer.Context,
    old: Annotated[str, typer.Argument(help=MODEL_HELP)],
    new: Annotated[str, typer.Argument(help="The same, for the other one.")],
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 1 when they differ.")] = False,
    as_json: AsJson = False,
    store: StoreOption = None,
) -> None:
    """Say which inputs, config keys, code modules, files and environment set two models apart.

    Both trees are walked down from the top by role, and what is the same is left out. A record that differs although
    its content is the same stopped the difference there: what was made from it was found again. Exits 0 whether they
    differ or not, with --exit-code 1 when they do.
    """
    source = open_repository(store or context.obj.store)
    sides = resolve_record(source, old), resolve_record(source, new)
    found = compare(source, *sides)
    if as_json:
        typer.echo(json.dumps({"old": sides[0], "new": sides[1], "differences": [each.to_json() for each in found]}))
    else:
        for line in _lines(old, new, sides, found):
            typer.echo(line)
    if found and exit_code:
        raise typer.Exit(1)


def _lines(old: str, new: str, sides: tuple[str, str], found: list[RecordDifference]) -> Iterator[str]:
    names = " and ".join(f"{name} ({side[:12]})" for name, side in zip((old, new), sides, strict=True))
    if not found:
        yield f"{names} are the same record"
        return
    causes = sum(not each.follows for each in found)
    yield f"{names}: {len(found)} record(s) differ, {causes} of them by themselves"
    for each in found:
        yield ""
        yield f"{each.path or 'top'}: {each.step}  {each.old[:12]} -> {each.new[:12]}{_verdict(each)}"
        for part in PARTS:
            for difference in getattr(each, part):
                yield f"  {_TITLES.get(part, part):<12}{_told(part, difference)}"


def _verdict(each: RecordDifference) -> str:
    if each.same_content:
        return "  same content: the difference stops here"
    if each.same_question:
        return "  the same was asked, other bytes came out: only the environment can be the reason"
    return f"  follows from {', '.join(each.changed)}" if each.follows else ""


def _told(part: str, difference: Difference) -> str:
    """A line; of code only the module's name, because a hash tells nobody anything."""
    if part != "code":
        return difference.describe()
    if difference.old is ABSENT or difference.new is ABSENT:
        return f"{difference.path}: only in the {'new' if difference.old is ABSENT else 'old'}"
    return f"{difference.path} was edited"
