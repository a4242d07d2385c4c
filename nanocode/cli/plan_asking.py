"""What a plan says of generation: requests, tokens and cost at best and at worst, as lines of text or plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from artifacts.repository import Repository
from nanocode.config import Config
from nanocode.constitution.pricing import prices_of
from nanocode.constitution.soul import Soul
from nanocode.planning.asking import BYTES_PER_TOKEN, Amounts, AskingStage, Converted, plan_asking

if TYPE_CHECKING:
    from steps.pipeline.outlook import Outlook


def asked_of_endpoints(
    settings: Config, soul: Path, repository: Repository, outlooks: Iterable[Outlook]
) -> list[AskingStage]:
    """The stages that ask, with what the store knows of sets that are converted already. Raises SoulError."""
    converted = {}
    for outlook in outlooks:
        if outlook.step == "convert_instructions" and outlook.record is not None:
            made = repository.provenances(outlook.record)
            name = outlook.name.rpartition("/instructions-")[2]
            if made:
                metrics = made[-1].metrics
                converted[name] = Converted(int(metrics["kept"]), int(metrics["tokens"]))
    return plan_asking(settings.constitution, settings.model.context_tokens, Soul.load(soul), converted)


def describe_asking(settings: Config, stages: Sequence[AskingStage]) -> list[str]:
    """The bounds as lines of text."""
    width = max(len(each.name) for each in stages) + 1
    lines = [
        "",
        f"{'asked of endpoints':<{max(width, 18)}} {'tasks':>9} {'requests':>23} {'tokens':>19} {'cost':>23}",
    ]
    lines += [_row(each, max(width, 18)) for each in stages]
    if len(stages) > 1:
        lines.append(_row(_sum(stages), max(width, 18)))
    lines += [
        "",
        "Bounds of a run from nothing: every draft in one turn and accepted as it is, to all turns, revisions and "
        "repairs used.",
        f"Tokens are modelled: {BYTES_PER_TOKEN} bytes each, no conversation longer than model.context_tokens. "
        "Attempts that fail may be billed on top.",
    ]
    unpriced = [part for part, price in prices_of(settings.constitution).items() if price is None]
    if unpriced:
        lines.append(f"-: no price is known: give [constitution.{unpriced[0]}] its usd_per_million_..._tokens.")
    if any(each.tasks is None for each in stages):
        lines.append("?: how many conversations there are is known once the set is converted, or by its max_rows.")
    limits = _limits(settings)
    return [*lines, f"Whatever the bounds, it ends at {' and '.join(limits)}."] if limits else lines


def asking_as_data(stages: Sequence[AskingStage]) -> Mapping[str, Any]:
    """The bounds as plain data."""
    return {"modelled": True, "stages": [asdict(each) for each in stages], "all": asdict(_sum(stages))}


def _sum(stages: Sequence[AskingStage]) -> AskingStage:
    """All together; unknown as soon as one of them is."""
    least, most = [each.least for each in stages], [each.most for each in stages]
    known = all(each.tasks is not None for each in stages)
    return AskingStage(
        "all",
        sum(each.tasks or 0 for each in stages) if known else None,
        all(each.exact for each in stages),
        sum((each for each in least if each is not None), Amounts()) if known else None,
        sum((each for each in most if each is not None), Amounts()) if known else None,
    )


def _row(stage: AskingStage, width: int) -> str:
    if stage.least is None or stage.most is None:
        return f"{stage.name:<{width}} {'?':>9} {'?':>23} {'?':>19} {'?':>23}"
    least, most = stage.least, stage.most
    tasks = f"{'' if stage.exact else '~'}{stage.tasks:,}"
    requests = f"{least.requests:,} to {most.requests:,}"
    tokens = f"{_short(least.tokens_in + least.tokens_out)} to {_short(most.tokens_in + most.tokens_out)}"
    cost = "-" if least.usd is None or most.usd is None else f"${least.usd:,.2f} to ${most.usd:,.2f}"
    return f"{stage.name:<{width}} {tasks:>9} {requests:>23} {tokens:>19} {cost:>23}"


def _short(tokens: int) -> str:
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if tokens >= size:
            return f"{tokens / size:.1f}{unit}"
    return str(tokens)


def _limits(settings: Config) -> list[str]:
    usd, tokens = settings.constitution.max_usd, settings.constitution.max_tokens
    found = [] if usd is None else [f"${usd:,.2f} (constitution.max_usd)"]
    return found if tokens is None else [*found, f"{tokens:,} tokens (constitution.max_tokens)"]
