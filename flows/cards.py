"""What people look at: a card for each stage that trains, generates or evaluates, and the run's last words.

Everything shown comes from the provenance of the record, so a cached stage shows the same card as the run that made it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metaflow.cards import Markdown, Table, VegaChart

from artifacts.store import open_store
from flows.charts import interval_chart, training_charts
from flows.examples import conversation_markdown
from nanocode.config import StoreConfig
from nanocode.evaluation.paired import one_line, paired_figures
from steps.pipeline import ROOT, Run
from steps.pipeline.generated import generated
from steps.pipeline.retention import retention_fault

DEFAULT_STORE = StoreConfig().url
SIDES = ["chosen", "rejected"]
_STAGES = ("base", "sft", "dpo")
_FIGURES = (
    ("bits per byte, text", "bpb_text", "{:.3f}"),
    ("bits per byte, code", "bpb_code", "{:.3f}"),
    ("valid calls", "valid_call_rate", "{:.1%}"),
    ("tasks solved", "task_success", "{:.1%}"),
    ("tasks solved, T=1", "task_success_sampled", "{:.1%}"),
    ("SOUL kept", "soul_greedy", "{:.1%}"),
    ("SOUL kept, T=1", "soul_sampled", "{:.1%}"),
    ("CORE", "core", "{:.4f}"),
    ("HumanEval, pass@1", "human_eval_pass_at_1", "{:.1%}"),
)


def training(card: Any, run: Run, record: str) -> None:
    """Curves, returns to a checkpoint and costs of a training stage."""
    made = run.repository.provenances(record)[-1]
    card.append(Markdown(f"# {run.repository.read_record(record).name}\nrecord `{record[:12]}`"))
    for chart in training_charts(made.metrics):
        card.append(VegaChart(chart))
    returns = [[str(each["step"]), each["fault"], str(each["skipped"])] for each in made.metrics.get("returns", [])]
    if returns:
        card.append(Table(returns, headers=["step", "fault", "batches left out"]))
    card.append(_table(made.cost, "cost"))


def data(card: Any, run: Run, conversations: str, pairs: str, instructions: Mapping[str, str]) -> None:
    """What generation kept and dropped by reason, how the critic judged, what it cost, and pairs to look at."""
    kinds = {"conversations": conversations, "preference pairs": pairs}
    looked = {title: generated(run.repository, record) for title, record in kinds.items()}
    for title, found in looked.items():
        _counts(card, run, title, kinds[title])
        for what, counts in found.counts.items():
            card.append(_table(counts, what))
        card.append(_table(found.cost, "cost"))
    for name, record in instructions.items():
        _counts(card, run, f"instruction set {name}", record)
    card.append(Markdown("# Example pairs\nThe draft was rejected, its accepted revision chosen."))
    for pair in looked["preference pairs"].examples:
        card.append(Table([[Markdown(conversation_markdown(pair[side]["messages"])) for side in SIDES]], headers=SIDES))


def _counts(card: Any, run: Run, title: str, record: str) -> None:
    card.append(Markdown(f"# {title}\nrecord `{record[:12]}`"))
    card.append(_table(run.repository.provenances(record)[-1].metrics, "count"))


def _table(values: Mapping[str, Any], title: str) -> Table:
    return Table([[key, str(value)] for key, value in sorted(values.items())], headers=[title, ""])


def evaluation(card: Any, run: Run, records: Mapping[str, str]) -> None:
    """Success with its interval for each model, and by task family."""
    metrics = {name: run.repository.provenances(record)[-1].metrics for name, record in records.items()}
    card.append(Markdown("# Held-out tasks\nSame tasks, same seeds; bars are 95 % Wilson intervals."))
    rows = [
        {"model": f"{name}, {decoding}", "figure": label, **metrics[name][decoding][key]}
        for name in _STAGES
        for decoding in ("greedy", "sampled")
        for label, key in (("tasks solved", "success"), ("SOUL kept", "soul"), ("valid calls", "valid_calls"))
    ]
    card.append(VegaChart(interval_chart(rows)))
    families = sorted(metrics["dpo"]["greedy"]["by_family"])
    table = [
        [family, *(f"{metrics[name]['greedy']['by_family'][family]['rate']:.2f}" for name in _STAGES)]
        for family in families
    ]
    card.append(Table(table, headers=["family", *_STAGES]))
    _retention(card, {k: v.to_json() for k, v in paired_figures(metrics["sft"], metrics["dpo"]).items()}, run)
    if all("core" in metrics[name] for name in _STAGES):
        _core(card, {name: metrics[name]["core"] for name in _STAGES})
    if all("human_eval" in metrics[name] for name in _STAGES):
        _human_eval(card, {name: metrics[name]["human_eval"] for name in _STAGES})


def _retention(card: Any, pairs: Mapping[str, Any], run: Run) -> None:
    """What DPO cost, task by task, and the warning where that is more than the gate."""
    if not pairs:
        return
    card.append(Markdown("# Retention\nTasks solved after DPO against before: the same tasks, the same decoding."))
    card.append(Table([[name, one_line(pair)] for name, pair in pairs.items()], headers=["decoding", ""]))
    if fault := retention_fault(pairs, run.config.evaluation):
        card.append(Markdown(f"**Warning**: {fault}"))


def _core(card: Any, figures: Mapping[str, Any]) -> None:
    """CORE with its interval, then the accuracy of each task beside what chance gets."""
    card.append(Markdown("# CORE\nCentred: 0 is chance, 1 is perfect. Brackets are 95 % intervals."))
    table = [
        ["CORE", "", "", *(f"{each['core']:.4f} ({each['low']:.4f}..{each['high']:.4f})" for each in figures.values())]
    ]
    for label, task in figures["base"]["tasks"].items():
        cells = (each["tasks"][label] for each in figures.values())
        shown = [f"{cell['rate']:.3f} ({cell['low']:.3f}..{cell['high']:.3f})" for cell in cells]
        table.append([label, f"{task['baseline']:.3f}", str(task["n"]), *shown])
    card.append(Table(table, headers=["accuracy", "chance", "n", *figures]))


def _human_eval(card: Any, figures: Mapping[str, Any]) -> None:
    """Every pass@k and pass^k with its interval; the ways of asking differ, and with them what is measured."""
    card.append(Markdown("# HumanEval\nA base model continues the prompt; the others work on a file with their tools."))
    names = [name for name in figures["base"] if name.startswith("pass_")]
    table = [["way", *(each["way"] for each in figures.values())]]
    for name in names:
        cells = (each[name] for each in figures.values())
        table.append([name, *(f"{cell['rate']:.3f} ({cell['low']:.3f}..{cell['high']:.3f})" for cell in cells)])
    card.append(Table(table, headers=["figure", *figures]))


def farewell(released: Mapping[str, Any], store_url: str) -> list[str]:
    """The results table, the model version's name and what to do next, as commands for the project's folder."""
    metrics, name = released["metrics"], released["name"]
    elsewhere = "" if store_url == open_store(DEFAULT_STORE, ROOT).url else f" --store {store_url}"
    lines = ["", f"{'held-out tasks, n = ' + str(metrics['dpo']['n_tasks']):28}" + "".join(f"{s:>9}" for s in _STAGES)]
    for label, key, form in _FIGURES:
        if not all(key in metrics[stage] for stage in _STAGES):
            continue  # a benchmark that was not run
        lines.append(f"{label:28}" + "".join(f"{form.format(metrics[stage][key]):>9}" for stage in _STAGES))
    lines += [
        f"{'preference accuracy':28}{'':18}{metrics['preference_accuracy']:>9.1%}",
        f"{'SOUL kept by the SFT data':28}{metrics['sft_data_soul']:>9.1%}",
        *(f"{'DPO, ' + name:28}{one_line(pair)}" for name, pair in metrics.get("retention", {}).items()),
        *([f"warning: {metrics['retention_warning']}"] if "retention_warning" in metrics else []),
        "",
        f"released {released['name']}@{released['version']}  record {released['record'][:12]}  "
        f"{metrics['wall_seconds']:.0f} s, peak memory {metrics['peak_rss_bytes'] / 1e9:.1f} GB",
        "",
        "next:",
        f"  .venv/bin/nanocode agent {name}{elsewhere} --workspace DIR   # talk to it, let it edit files",
        f"  .venv/bin/nanocode lineage show {name}{elsewhere}   # what it is made of",
        f"  .venv/bin/nanocode lineage verify {name}{elsewhere}   # prove it",
        "  .venv/bin/python flows/full_pipeline.py card view evaluate   # look at the figures",
    ]
    return lines
