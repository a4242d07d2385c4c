"""Surveying a run for the command line: over which store, with estimates filled in, as lines of text or plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from artifacts.repository import Repository
from nanocode.cli.context import find_store, warn
from nanocode.config import Config

if TYPE_CHECKING:
    from nanocode.planning.plan import Plan
    from steps.pipeline.outlook import Outlook

ReuseOption = Annotated[
    list[str],
    typer.Option(
        "--reuse",
        help="A stage (sft) or artifact (evaluation-base) not to make again for an edit of code alone. Repeatable.",
    ),
]

SHOWN_REASONS = 2
WORDS = {"cached": "cached", "reused": "reused", "runs": "to run", "follows": "to follow", "blocked": "blocked"}


def repository_of(settings: Config, store: str | None) -> Repository:
    """The artifacts of a run: of the store asked for, else of $NANOCODE_STORE, else of `[store] url`."""
    return Repository(find_store(store, settings.store), warn=warn)


def take_survey(settings: Config, repository: Repository, reuse: Iterable[str] = ()) -> list[Outlook]:
    """What a run of the config would do. Raises ConfigError for a stage in `reuse` that there is not."""
    from artifacts.build import RunInfo
    from steps.pipeline.reuse import check_reuse
    from steps.pipeline.survey import Survey, survey

    names = frozenset(reuse)
    check_reuse(names, settings)
    return survey(Survey(settings, repository, RunInfo("survey", "", ""), reuse=names))


def with_models(outlooks: Iterable[Outlook], planned: Plan) -> list[Outlook]:
    """Stages without an estimate from a record get the one modelled for the accelerator, where there is one."""
    from steps.pipeline.outlook import Expected

    modelled = {each.stage.name: each for each in planned.stages}
    basis = f"modelled: {planned.devices} x {planned.chip.name} at {planned.utilisation:.0%} of its peak"
    found = []
    for outlook in outlooks:
        own = modelled.get(outlook.step) if outlook.would_be_made and outlook.expected is None else None
        found.append(replace(outlook, expected=Expected(own.seconds, own.usd, basis)) if own else outlook)
    return found


def describe(outlooks: Sequence[Outlook], url: str) -> list[str]:
    """The survey as lines of text: a table, what it sums up to, and where the environment differs."""
    counts = Counter[str](outlook.state for outlook in outlooks)
    told = ", ".join(f"{counts[state]} {word}" for state, word in WORDS.items() if counts[state])
    width = max(len(outlook.name) for outlook in outlooks)
    lines = [f"a run over {url}: {told}", "", f"{'stage':<17} {'artifact':<{width}} {'state':<8} {'expected':>17}  why"]
    for outlook in outlooks:
        first, *more = _shown_reasons(outlook) or [""]
        start = f"{outlook.step:<17} {outlook.name:<{width}} {outlook.state:<8} {amount(outlook):>17}"
        lines.append(f"{start}  {first}".rstrip())
        lines += [f"{'':<{len(start)}}  {reason}" for reason in more]
    return [*lines, "", *_sum(outlooks), *environment_lines(outlooks)]


def amount(outlook: Outlook) -> str:
    """The time and cost expected, marked as an estimate; empty for what is not made, `?` for what nobody knows."""
    if not outlook.would_be_made:
        return ""
    if outlook.expected is None:
        return "?"
    from nanocode.cli.plan import duration, money

    usd = outlook.expected.usd
    return f"~{duration(outlook.expected.seconds)}" + (f" {money(usd)}" if usd is not None else "")


def environment_lines(outlooks: Iterable[Outlook]) -> list[str]:
    """Where records were made in another environment than this one, and on which devices; never a reason to run."""
    differing: dict[str, list[str]] = {}
    devices: dict[str, list[str]] = {}
    for outlook in outlooks:
        for difference in outlook.environment:
            differing.setdefault(difference.describe(), []).append(outlook.step)
        for kind in outlook.devices:
            devices.setdefault(kind, []).append(outlook.step)
    lines = [
        f"environment, no reason to run: {described} since {', '.join(dict.fromkeys(steps))} was made"
        for described, steps in differing.items()
    ]
    if len(devices) > 1:
        told = "; ".join(f"{kind}: {', '.join(dict.fromkeys(steps))}" for kind, steps in devices.items())
        lines.append(f"environment, no reason to run: made on different devices, {told}")
    return lines


def as_data(outlooks: Iterable[Outlook], url: str) -> Mapping[str, Any]:
    """The survey as plain data."""
    return {"store": url, "stages": [outlook.to_json() for outlook in outlooks]}


def _shown_reasons(outlook: Outlook) -> list[str]:
    reasons = outlook.reasons(in_short=True)
    if outlook.state == "reused":
        reasons = [f"record {(outlook.record or '')[:12]} accepted", *reasons]
    if len(reasons) <= SHOWN_REASONS + 1:
        return reasons
    left = len(reasons) - SHOWN_REASONS
    return [*reasons[:SHOWN_REASONS], f"and {left} more: see nanocode lineage why"]


def _sum(outlooks: Iterable[Outlook]) -> list[str]:
    made = [outlook for outlook in outlooks if outlook.would_be_made]
    if not made:
        return ["nothing to make"]
    from nanocode.cli.plan import duration, money

    known = [outlook.expected for outlook in made if outlook.expected is not None]
    usd = [each.usd for each in known if each.usd is not None]
    unknown = len(made) - len(known)
    total = f"in all ~{duration(sum(each.seconds for each in known))} one after the other"
    total += f", {money(sum(usd))}" if usd else ""
    total += f", and {unknown} stage(s) of which nothing is known" if unknown else ""
    return [total, "~: estimates, from what earlier records took or modelled for the machine below; see --json"]
