"""What people look at: a card for each stage that trains, generates or evaluates, and the run's last words.

Everything shown comes from the provenance of the record, so a cached stage shows the same card as the run that made it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from metaflow.cards import Markdown, Table, VegaChart

from artifacts.store import open_store
from nanocode.config import StoreConfig
from steps.pipeline import ROOT, Run

DEFAULT_STORE = StoreConfig().url
_STAGES = ("base", "sft", "dpo")
_FIGURES = (
    ("bits per byte, text", "bpb_text", "{:.3f}"),
    ("bits per byte, code", "bpb_code", "{:.3f}"),
    ("valid calls", "valid_call_rate", "{:.1%}"),
    ("tasks solved", "task_success", "{:.1%}"),
    ("tasks solved, T=1", "task_success_sampled", "{:.1%}"),
    ("SOUL kept", "soul_greedy", "{:.1%}"),
    ("SOUL kept, T=1", "soul_sampled", "{:.1%}"),
)


def training(card: Any, run: Run, record: str) -> None:
    """Loss curve and costs of a training stage."""
    made = run.repository.provenances(record)[-1]
    card.append(Markdown(f"# {run.repository.read_record(record).name}\nrecord `{record[:12]}`"))
    curve = made.metrics.get("curve", [])
    for name in sorted({key for point in curve for key in point} - {"step"}):
        card.append(VegaChart(_line_chart(curve, name)))
    card.append(Table([[key, str(value)] for key, value in sorted(made.cost.items())], headers=["cost", ""]))


def data(card: Any, run: Run, conversations: str, pairs: str) -> None:
    """What generation kept and dropped, by reason."""
    for title, record in (("conversations", conversations), ("preference pairs", pairs)):
        metrics = run.repository.provenances(record)[-1].metrics
        card.append(Markdown(f"# {title}\nrecord `{record[:12]}`"))
        card.append(Table([[key, str(value)] for key, value in sorted(metrics.items())], headers=["count", ""]))


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
    card.append(VegaChart(_interval_chart(rows)))
    families = sorted(metrics["dpo"]["greedy"]["by_family"])
    table = [
        [family, *(f"{metrics[name]['greedy']['by_family'][family]['rate']:.2f}" for name in _STAGES)]
        for family in families
    ]
    card.append(Table(table, headers=["family", *_STAGES]))


def farewell(released: Mapping[str, Any], store_url: str) -> list[str]:
    """The results table, the model version's name and what to do next, as commands for the project's folder."""
    metrics, name = released["metrics"], released["name"]
    elsewhere = "" if store_url == open_store(DEFAULT_STORE, ROOT).url else f" --store {store_url}"
    lines = ["", f"{'held-out tasks, n = ' + str(metrics['dpo']['n_tasks']):28}" + "".join(f"{s:>9}" for s in _STAGES)]
    for label, key, form in _FIGURES:
        lines.append(f"{label:28}" + "".join(f"{form.format(metrics[stage][key]):>9}" for stage in _STAGES))
    lines += [
        f"{'preference accuracy':28}{'':18}{metrics['preference_accuracy']:>9.1%}",
        f"{'SOUL kept by the SFT data':28}{metrics['sft_data_soul']:>9.1%}",
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


def _line_chart(curve: Any, name: str) -> dict[str, Any]:
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": 600,
        "height": 220,
        "data": {"values": [point for point in curve if name in point]},
        "mark": "line",
        "encoding": {
            "x": {"field": "step", "type": "quantitative"},
            "y": {"field": name, "type": "quantitative", "scale": {"zero": False}},
        },
    }


def _interval_chart(rows: list[dict[str, Any]]) -> dict[str, Any]:
    position = {"field": "model", "type": "nominal", "sort": None, "title": None}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "data": {"values": rows},
        "facet": {"field": "figure", "type": "nominal"},
        "spec": {
            "width": 200,
            "layer": [
                {"mark": "bar", "encoding": {"y": position, "x": {"field": "rate", "type": "quantitative"}}},
                {
                    "mark": "errorbar",
                    "encoding": {
                        "y": position,
                        "x": {"field": "low", "type": "quantitative", "title": "rate"},
                        "x2": {"field": "high"},
                    },
                },
            ],
        },
    }
