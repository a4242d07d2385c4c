"""Tables that go deeper into an evaluation's tasks: the funnel, several samples, micro-SWE, and two models paired."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from nanocode.cli.evaluation_table import Result, new_table, shown_rate
from nanocode.evaluation.paired import DECODINGS, Paired, paired_figures

_WHOLE = ("overruns", "cut_replies", "repeated_calls", "called_needlessly", "never_called")
_MEANS = ("calls_a_task", "turns_a_task")
_SHOWN_TASKS = 8


def agent_tables(results: Sequence[Result]) -> Iterator[Table]:
    """For each decoding that has them: the funnel, what several samples are worth, and micro-SWE; then BFCL."""
    for decoding in DECODINGS:
        figures = [each.figures.get(decoding, {}) for each in results]
        yield from _funnel(f"{decoding}: funnel", results, figures)
        yield from _samples(f"{decoding}: several samples", results, figures)
    for decoding in DECODINGS:
        figures = [each.figures.get("micro_swe", {}).get(decoding, {}) for each in results]
        if any(figures):
            yield _micro_swe(decoding, results, figures)
        yield from _funnel(f"micro-SWE, {decoding}: funnel", results, figures)
        yield from _samples(f"micro-SWE, {decoding}: several samples", results, figures)
    calls = [each.figures.get("bfcl", {}) for each in results]
    if any(calls):
        yield _function_calls(results, calls)


def pairs(first: Result, second: Result) -> dict[str, Paired]:
    """By suite and decoding, the second against the first on the tasks that both were given."""
    found: dict[str, Paired] = {}
    whole = first.figures, second.figures
    one, other = (each.get("micro_swe", {}) for each in whole)
    for suite, between in (("", paired_figures(*whole)), ("micro_swe.", paired_figures(one, other))):
        found |= {f"{suite}{decoding}": pair for decoding, pair in between.items()}
    return found


def paired_lines(first: str, second: str, found: Mapping[str, Paired]) -> Iterator[str]:
    """The difference with its interval, and the tasks that only one of them solves, as markup."""
    for name, pair in found.items():
        yield f"{second} against {first}, task by task, {name.replace('micro_swe.', 'micro-SWE, ')}: {pair}"
        for label, tasks in (("won", pair.wins), ("lost", pair.losses)):
            if tasks:
                more = f" and {len(tasks) - _SHOWN_TASKS} more" if len(tasks) > _SHOWN_TASKS else ""
                yield f"  {label}: {', '.join(tasks[:_SHOWN_TASKS])}{more}"


def _funnel(title: str, results: Sequence[Result], figures: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    funnels = [each.get("funnel", {}) for each in figures]
    if not any(funnels):
        return
    table = new_table(title, results)
    for group in ("tasks", "calls"):
        for stage in next(each[group] for each in funnels if each):
            rates = (shown_rate(each.get(group, {}).get(stage)) for each in funnels)
            table.add_row(f"{group}: {stage.replace('_', ' ')}", *rates)
    for name in _WHOLE:
        table.add_row(name.replace("_", " "), *(shown_rate(each.get(name)) for each in funnels))
    for name in _MEANS:
        table.add_row(name.replace("_", " "), *(_mean(each.get(name)) for each in funnels))
    yield table


def _samples(title: str, results: Sequence[Result], figures: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    found = [each.get("samples", {}) for each in figures]
    if not any(found):
        return
    table = new_table(title, results)
    for name, label in (("pass_at_k", "pass@"), ("pass_hat_k", "pass^")):
        for k in next(each[name] for each in found if each):
            table.add_row(f"{label}{k}", *(shown_rate(each.get(name, {}).get(k)) for each in found))
    yield table


def _micro_swe(decoding: str, results: Sequence[Result], figures: Sequence[Mapping[str, Any]]) -> Table:
    table = new_table(f"micro-SWE, {decoding}", results)
    for name in ("success", "edited_the_right_file", "edited_a_test"):
        label = "bugs fixed" if name == "success" else name.replace("_", " ")
        table.add_row(label, *(shown_rate(each.get(name)) for each in figures))
    for kind in sorted({kind for each in figures for kind in each.get("by_bug", {})}):
        table.add_row(kind.replace("_", " "), *(shown_rate(each.get("by_bug", {}).get(kind)) for each in figures))
    return table


def _function_calls(results: Sequence[Result], figures: Sequence[Mapping[str, Any]]) -> Table:
    table = new_table("BFCL", results)
    for stage in next(each["stages"] for each in figures if each):
        table.add_row(stage.replace("_", " "), *(shown_rate(each.get("stages", {}).get(stage)) for each in figures))
    table.add_row("called needlessly", *(shown_rate(each.get("called_needlessly")) for each in figures))
    table.add_row("too long", *(str(each.get("overruns", "")) for each in figures))
    return table


def _mean(mean: Mapping[str, Any] | None) -> str:
    if mean is None:
        return ""
    interval = "" if mean["low"] is None else f"{mean['low']:.2f}..{mean['high']:.2f}, "
    return f"{mean['mean']:.2f}  ({interval}n={mean['n']})"
