"""The curves of a training stage's card, from the metrics that the stage gives."""

from __future__ import annotations

from typing import Any

from flows.charts import training_charts


def titles(charts: list[dict[str, Any]]) -> list[str]:
    return [
        chart["encoding"]["y"]["title"] if "encoding" in chart else chart["layer"][0]["encoding"]["y"]["title"]
        for chart in charts
    ]


METRICS = {
    "curve": [{"step": step, "loss": 2.0 / step, "accuracy": 0.5, "rate": 1.0} for step in (1, 2, 3)],
    "timing": [{"step": step, "tokens_per_second": 900.0} for step in (1, 2, 3)],
    "observations": [{"step": 2, "bpb_docs": 1.5}, {"step": 3, "samples": [{"prompt": "def "}]}],
    "returns": [{"step": 3, "fault": "the loss became nan at step 3", "skipped": [1, 2]}],
}


def test_every_curve_of_a_stage_is_drawn() -> None:
    charts = training_charts(METRICS)
    assert titles(charts) == ["loss", "bpb_docs", "accuracy", "rate, share of its peak", "tokens a second"]
    assert charts[1]["data"]["values"] == [{"step": 2, "bpb_docs": 1.5}]
    assert charts[4]["data"]["values"][0] == {"step": 1, "tokens_per_second": 900.0}


def test_the_loss_stands_raw_and_smoothed_with_a_rule_at_each_return() -> None:
    loss = training_charts(METRICS)[0]
    assert [layer["encoding"].get("y", {}).get("field") for layer in loss["layer"]] == ["loss", "smoothed", None]
    assert loss["layer"][2]["data"] == {"values": [{"step": 3}]}
    assert len(training_charts(METRICS | {"returns": []})[0]["layer"]) == 2


def test_a_record_of_before_has_what_it_has() -> None:
    assert titles(training_charts({"curve": [{"step": 1, "loss": 2.0}]})) == ["loss"]
    assert training_charts({}) == []
