"""The evaluation's results as tables: contestants side by side, and the record beside its own model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from nanocode.evaluation.agreement import GROUPS, RATES, Comparison

_COLOURS = {"same": "green", "agrees": "green", "differs": "red"}


@dataclass(frozen=True)
class Result:
    """One contestant's figures, in the evaluation stage's form."""

    name: str
    figures: Mapping[str, Any]


def tables(results: Sequence[Result]) -> Iterator[Table]:
    """Bits per byte, rates and benchmarks, then CORE's tasks, then success by variant and family of tasks; a column a
    contestant.
    """
    overall = new_table("figure", results)
    for name in sorted({name for each in results for name in each.figures if name.startswith("bpb_")}):
        overall.add_row(name.replace("_", " "), *(_bits(each.figures.get(name)) for each in results))
    decodings = [name for name in ("greedy", "sampled") if any(name in each.figures for each in results)]
    for decoding in decodings:
        for rate in RATES:
            cells = [shown_rate(each.figures.get(decoding, {}).get(rate)) for each in results]
            if any(cells):
                overall.add_row(f"{decoding}: {rate.replace('_', ' ')}", *cells)
    for name, figure in (("CORE", "core"), ("CORE, corrected baselines", "core_v2")):
        cells = [_core(each.figures.get("core"), figure) for each in results]
        if any(cells):
            overall.add_row(name, *cells)
    programs = [each.figures.get("human_eval", {}) for each in results]
    for name in sorted({name for each in programs for name in each if name.startswith("pass_")}, key=_by_number):
        label = name.replace("_at_", "@").replace("_hat_", "^")
        overall.add_row(f"HumanEval: {label}", *(shown_rate(each.get(name)) for each in programs))
    if any(programs):
        overall.add_row("HumanEval: asked by", *(each.get("way", "") for each in programs))
    yield overall
    yield from _core_tasks(results)
    for decoding in decodings:
        by_group = new_table(f"{decoding}: success by", results)
        for group in GROUPS:
            found = [each.figures.get(decoding, {}).get(group, {}) for each in results]
            for member in sorted({member for each in found for member in each}):
                label = f"{member.replace('_', ' ')} wording" if group == "by_variant" else member
                by_group.add_row(label, *(shown_rate(each.get(member)) for each in found))
        if by_group.row_count:
            yield by_group


def agreement_lines(name: str, comparisons: Sequence[Comparison], asked: str) -> Iterator[str]:
    """What became of the recorded figures, as markup: a summary, then each figure that differs."""
    if not comparisons:
        yield f"{name}: there are no recorded figures to compare with"
        return
    counts = {verdict: sum(each.verdict == verdict for each in comparisons) for verdict in _COLOURS}
    told = ", ".join(f"[{_COLOURS[verdict]}]{count} {verdict}[/]" for verdict, count in counts.items() if count)
    yield f"{name} against its record, on {asked}: {told}"
    for each in comparisons:
        if each.verdict == "differs":
            yield f"  [red]differs[/] {each.figure}: measured {each.measured:.4g}, recorded {each.recorded:.4g}"


def new_table(first: str, results: Sequence[Result]) -> Table:
    """A column for what a row is about, and one for each contestant."""
    return Table(first, *(each.name for each in results), box=None, header_style="bold", pad_edge=False)


def _core_tasks(results: Sequence[Result]) -> Iterator[Table]:
    tasks = [each.figures.get("core", {}).get("tasks", {}) for each in results]
    labels = list(dict.fromkeys(label for each in tasks for label in each))
    if labels:
        table = new_table("CORE: accuracy (chance)", results)
        for label in labels:
            baseline = next(each[label]["baseline"] for each in tasks if label in each)
            table.add_row(f"{label} ({baseline:.3f})", *(shown_rate(each.get(label)) for each in tasks))
        yield table


def _core(figures: Mapping[str, Any] | None, name: str) -> str:
    if figures is None:
        return ""
    interval = f"  ({figures['low']:.4f}..{figures['high']:.4f})" if name == "core" else ""
    return f"{figures[name]:.4f}{interval}"


def _by_number(name: str) -> tuple[str, int]:
    kind, _, number = name.rpartition("_")
    return kind, int(number)


def _bits(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def shown_rate(rate: Mapping[str, Any] | None) -> str:
    """A rate with its interval and n; nothing where there is none."""
    return "" if rate is None else f"{rate['rate']:.3f}  ({rate['low']:.3f}..{rate['high']:.3f}, n={rate['n']})"
