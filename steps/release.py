"""Stage: the release. Model, tokenizer, SOUL and every evaluation in one folder that runs anywhere."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanocode.evaluation.paired import paired_figures

MODEL_FILES = ("model.safetensors", "model.json")


@dataclass(frozen=True)
class Inputs:
    """`evaluations` maps base, sft and dpo to the folders with ``metrics.json``."""

    model: Path
    tokenizer: Path
    soul: Path
    evaluations: Mapping[str, Path]
    sft_data: Path
    output: Path


def run(config: Mapping[str, Any], inputs: Inputs) -> dict[str, Any]:
    """Copy what a user needs, write ``config.json`` (the run's) and ``metrics.json``; returns the metrics."""
    for name in MODEL_FILES:
        shutil.copyfile(inputs.model / name, inputs.output / name)
    shutil.copyfile(inputs.tokenizer / "tokenizer.json", inputs.output / "tokenizer.json")
    shutil.copyfile(inputs.soul / "SOUL.md", inputs.output / "SOUL.md")
    metrics = summary(
        {name: _read(folder / "metrics.json") for name, folder in sorted(inputs.evaluations.items())},
        _read(inputs.sft_data / "report.json"),
        float(config["sft"]["stock_fraction"]),
    )
    for name, content in (("config.json", config), ("metrics.json", metrics)):
        text = json.dumps(content, indent=2, sort_keys=True)
        (inputs.output / name).write_text(text + "\n", encoding="utf-8")
    return metrics


def summary(evaluations: Mapping[str, Any], sft_report: Mapping[str, Any], stock_fraction: float) -> dict[str, Any]:
    """The figures of a model version: plain rates first, the full evaluations with their intervals under "details"."""
    out: dict[str, Any] = {}
    for name, found in evaluations.items():
        out[name] = {
            "bpb_text": found.get("bpb_text"),
            "bpb_code": found.get("bpb_code"),
            "valid_call_rate": found["greedy"]["valid_calls"]["rate"],
            "task_success": found["greedy"]["success"]["rate"],
            "task_success_sampled": found["sampled"]["success"]["rate"],
            "soul_sampled": found["sampled"]["soul"]["rate"],
            "soul_greedy": found["greedy"]["soul"]["rate"],
            "n_tasks": found["greedy"]["success"]["n"],
        }
        if "core" in found:
            out[name]["core"] = found["core"]["core"]
        if "human_eval" in found:
            out[name]["human_eval_pass_at_1"] = found["human_eval"]["pass_at_1"]["rate"]
    kept = paired_figures(evaluations["sft"], evaluations["dpo"])
    preference = evaluations["dpo"]["preference"]
    stock, soul = (sft_report[f"adherence_{register}"]["rate"] for register in ("stock", "soul"))
    return out | {
        "preference_accuracy": preference["accuracy"]["rate"],
        "preference_margin": preference["mean_margin"],
        "retention": {decoding: pair.to_json() for decoding, pair in kept.items()},
        "sft_data_soul": stock_fraction * stock + (1 - stock_fraction) * soul,
        "details": dict(evaluations),
    }


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
