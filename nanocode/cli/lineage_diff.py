"""`nanocode lineage diff`: what sets two models apart."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from artifacts.compare import PARTS, RecordDifference, compare
from artifacts.differences import ABSENT, Difference
from artifacts.releases import resolve_record
from nanocode.cli.context import StoreOption, open_repository
from nanocode.cli.options import MODEL_HELP, AsJson

_TITLES = {"made_as": "made as"}
_SHOWN_MODULES = 12


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
            found_here = getattr(each, part)
            told = _modules(found_here) if part == "code" else (difference.describe() for difference in found_here)
            for line in told:
                yield f"  {_TITLES.get(part, part):<12}{line}"


def _verdict(each: RecordDifference) -> str:
    if each.same_content:
        return "  same content: the difference stops here"
    if each.same_question:
        return "  the same was asked, other bytes came out: only the environment can be the reason"
    return f"  follows from {', '.join(each.changed)}" if each.follows else ""


def _modules(differences: Sequence[Difference]) -> Iterator[str]:
    """Module names by what became of them: a hash tells nobody anything."""
    names: dict[str, list[str]] = {"edited": [], "only in the new": [], "only in the old": []}
    for each in differences:
        kind = "only in the new" if each.old is ABSENT else "only in the old" if each.new is ABSENT else "edited"
        names[kind].append(each.path)
    for kind, modules in names.items():
        if modules:
            more = f" and {len(modules) - _SHOWN_MODULES} more (--json)" if len(modules) > _SHOWN_MODULES else ""
            yield f"{kind}: {', '.join(modules[:_SHOWN_MODULES])}{more}"
