"""Vega-Lite specifications of what the cards show: plain data in, plain data out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
_SIZE = {"width": 600, "height": 220}
_SMOOTHED_STEPS = 20
_SHOWN_APART = ("step", "loss", "rate")

Points = Sequence[Mapping[str, Any]]


def training_charts(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The curves of a training stage: loss, held-out figures, what else was reported, the rate and the speed."""
    curve: Points = metrics.get("curve", [])
    observations = [
        {name: value for name, value in each.items() if isinstance(value, int | float)}
        for each in metrics.get("observations", [])
    ]
    returns = [each["step"] for each in metrics.get("returns", [])]
    charts = [loss_chart(curve, returns)] if curve else []
    charts += [line_chart(observations, name, points=True) for name in _names(observations) if name != "step"]
    charts += [line_chart(curve, name) for name in _names(curve) if name not in _SHOWN_APART]
    charts += [line_chart(curve, "rate", "rate, share of its peak")] if "rate" in _names(curve) else []
    timing: Points = metrics.get("timing", [])
    return charts + ([line_chart(timing, "tokens_per_second", "tokens a second")] if timing else [])


def loss_chart(curve: Points, returns: Sequence[int]) -> dict[str, Any]:
    """Every loss, pale; its running mean; a rule where the run returned to a checkpoint."""
    x = {"field": "step", "type": "quantitative"}
    y = {"type": "quantitative", "title": "loss", "scale": {"zero": False}}
    mean = {"op": "mean", "field": "loss", "as": "smoothed"}
    layers: list[dict[str, Any]] = [
        {"mark": {"type": "line", "opacity": 0.3}, "encoding": {"x": x, "y": y | {"field": "loss"}}},
        {
            "transform": [{"window": [mean], "frame": [1 - _SMOOTHED_STEPS, 0]}],
            "mark": "line",
            "encoding": {"x": x, "y": y | {"field": "smoothed"}},
        },
    ]
    if returns:
        rules = {"values": [{"step": step} for step in returns]}
        layers.append({"data": rules, "mark": {"type": "rule", "color": "firebrick"}, "encoding": {"x": x}})
    values = [{"step": point["step"], "loss": point["loss"]} for point in curve]
    return {"$schema": _SCHEMA, **_SIZE, "data": {"values": values}, "layer": layers}


def line_chart(curve: Points, name: str, title: str | None = None, points: bool = False) -> dict[str, Any]:
    """One value by step."""
    return {
        "$schema": _SCHEMA,
        **_SIZE,
        "data": {"values": [{"step": point["step"], name: point[name]} for point in curve if name in point]},
        "mark": {"type": "line", "point": points},
        "encoding": {
            "x": {"field": "step", "type": "quantitative"},
            "y": {"field": name, "type": "quantitative", "title": title or name, "scale": {"zero": False}},
        },
    }


def interval_chart(rows: Points) -> dict[str, Any]:
    """Bars of "rate" with the interval from "low" to "high", one field a "figure", one bar a "model"."""
    position = {"field": "model", "type": "nominal", "sort": None, "title": None}
    return {
        "$schema": _SCHEMA,
        "data": {"values": list(rows)},
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


def _names(points: Points) -> list[str]:
    return sorted({name for point in points for name in point})
