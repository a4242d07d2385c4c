"""`nanocode lineage cost`: what a model version cost, stage by stage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

import typer

from artifacts.costs import StageCost, stage_costs, total
from artifacts.releases import resolve_record
from nanocode.cli.context import StoreOption, open_repository
from nanocode.cli.options import AsJson, Model

_COLUMNS = {
    "wall_seconds": ("wall s", "{:,.1f}"),
    "interrupted_seconds": ("interrupted s", "{:,.1f}"),
    "device_seconds": ("device s", "{:,.1f}"),
    "tokens_trained": ("tokens trained", "{:,.0f}"),
    "requests": ("requests", "{:,.0f}"),
    "tokens_in": ("tokens in", "{:,.0f}"),
    "tokens_out": ("tokens out", "{:,.0f}"),
    "usd": ("usd", "{:,.4f}"),
}


def cost(context: typer.Context, model: Model, as_json: AsJson = False, store: StoreOption = None) -> None:
    """Add up what a model and everything below it cost: time, devices, tokens, money.

    Each record counts once, at its latest making. "wall s" is the attempt that finished, "interrupted s" those before
    it, up to their last sign of life; device seconds and usd hold both. A stage without a price (compute.
    usd_per_device_hour, constitution.*.usd_per_million_*_tokens) is named: the sum of usd is then of the others alone.
    """
    source = open_repository(store or context.obj.store)
    record = resolve_record(source, model)
    costs = stage_costs(source, record)
    sums, unpriced = total(costs), [each.name for each in costs if each.is_unpriced]
    if as_json:
        stages = [asdict(each) for each in costs]
        document = {"model": model, "record": record, "stages": stages, "total": sums, "unpriced": unpriced}
        typer.echo(json.dumps(document))
        return
    for line in _lines(costs, sums):
        typer.echo(line)
    if unpriced:
        typer.echo(f"no price is known for {', '.join(unpriced)}")


def _lines(costs: list[StageCost], sums: Mapping[str, float]) -> list[str]:
    """A line a stage and one with the sums, in columns as wide as they need to be: nothing is cut off."""
    shown = [name for name in _COLUMNS if name in sums]
    rows = [["stage", "artifact", *(_COLUMNS[name][0] for name in shown)]]
    for each in costs:
        times = f" ({each.interruptions} interrupted)" if each.interruptions else ""
        rows.append([each.step, each.name + times, *_amounts(shown, each.amounts)])
    rows.append(["total", "", *_amounts(shown, sums)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) if column < 2 else cell.rjust(width) for column, (cell, width) in cells).rstrip()
        for cells in (list(enumerate(zip(row, widths, strict=True))) for row in rows)
    ]


def _amounts(shown: list[str], amounts: Mapping[str, float]) -> list[str]:
    return [_COLUMNS[name][1].format(amounts[name]) if name in amounts else "" for name in shown]
