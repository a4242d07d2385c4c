"""What the pipeline's artifacts mean, for exports: which are models, which data, and which of their figures count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from artifacts.export.cyclonedx import Figure, Meaning
from artifacts.export.lineage import Lineage, Part
from nanocode.constitution.prompts import PARTS, RULES_MODEL

MODELS = ("model", "release")
DATA = ("shards", "conversations", "pairs", "instructions", "restyled")
_RATE = {"rate", "low", "high", "n"}
_ROWS = {
    "shards": lambda metrics: metrics.get("kept", {}).get("documents"),
    "tokens": lambda metrics: metrics.get("documents"),
    "plan": lambda metrics: metrics.get("rows"),
    "conversations": lambda metrics: sum(metrics.get("conversations", {}).values()) or None,
    "pairs": lambda metrics: metrics.get("pairs"),
    "instructions": lambda metrics: metrics.get("kept"),
    "rollouts": lambda metrics: metrics.get("tasks"),
    "restyled": lambda metrics: sum(metrics.get("conversations", {}).values()) or metrics.get("pairs"),
    "log_probs": lambda metrics: metrics.get("pairs"),
}


def rows(part: Part) -> int | None:
    """How many documents, conversations, pairs or rows an artifact holds, where its metrics say so."""
    count = _ROWS[part.record.kind](part.metrics) if part.record.kind in _ROWS else None
    return int(count) if count is not None else None


def licences(part: Part) -> list[str]:
    """The licences of what an artifact of shards, of instructions, converted or restyled, or of pairs kept."""
    licensed = ("shards", "instructions", "restyled", "pairs")
    return sorted(part.metrics.get("licences", {})) if part.record.kind in licensed else []


def teachers(lineage: Lineage) -> dict[str, str]:
    """Which model was generator, critic and reviser of the generated data."""
    for part in lineage.parts.values():
        constitution = part.record.config.get("constitution")
        if isinstance(constitution, Mapping):
            return {name: str(constitution[name]["model"]) for name in PARTS}
    return {}


def taught_by_rules(lineage: Lineage) -> list[str]:
    """The parts among generator, critic and reviser that were no language model but the built-in rules."""
    return [name for name, model in teachers(lineage).items() if model.startswith(RULES_MODEL)]


def section(lineage: Lineage, name: str) -> Mapping[str, Any]:
    """A section of the config, of whichever part read it; empty when none did."""
    for part in lineage.parts.values():
        value = part.record.config.get(name)
        if isinstance(value, Mapping):
            return value
    return {}


def figures(lineage: Lineage) -> list[Figure]:
    """Every figure of every evaluation in the lineage, with interval and sample size where it is a rate."""
    evaluations = [part for part in lineage.parts.values() if part.record.kind == "evaluation"]
    return [
        figure
        for part in sorted(evaluations, key=lambda part: part.record.name)
        for figure in _figures(part.record.name.rpartition("evaluation-")[2], part.metrics, ())
    ]


def _figures(model: str, value: Any, path: tuple[str, ...]) -> Iterator[Figure]:
    if isinstance(value, Mapping) and value.keys() >= _RATE:
        yield Figure(".".join(path), model, value["rate"], value["low"], value["high"], value["n"])
    elif isinstance(value, Mapping):
        for name, each in sorted(value.items()):
            yield from _figures(model, each, (*path, name))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield Figure(".".join(path), model, float(value))


def architecture(lineage: Lineage) -> str:
    """The model's shape in a line, from its config; empty when no part has one."""
    model = section(lineage, "model")
    if not model:
        return ""
    vocabulary = section(lineage, "tokenizer").get("vocab_size")
    shown = {"layers": model.get("depth"), "width": model.get("width"), "heads": model.get("heads")}
    shape = ", ".join(
        f"{value} {name}" if name != "width" else f"width {value}" for name, value in shown.items() if value
    )
    return f"GPT ({model.get('recipe')}): {shape}, context {model.get('context_tokens')}, vocabulary {vocabulary}"


def limitations(lineage: Lineage) -> list[str]:
    """What the records themselves show that the model cannot do, or was not asked."""
    found = []
    model, evaluation = section(lineage, "model"), section(lineage, "evaluation")
    if model:
        found.append(f"It reads {model['context_tokens']:,} tokens at most, prompt and reply together.")
    rules = taught_by_rules(lineage)
    if rules:
        names = sorted(part.record.name for part in lineage.parts.values() if part.record.kind == "instructions")
        besides = f", but for {', '.join(names)}," if names else ""
        found.append(
            f"What it was taught after pretraining{besides} was written by rules, not by a language model "
            f"({', '.join(rules)}), in procedural tasks."
        )
    if evaluation:
        named = {"core": "CORE", "human_eval": "HumanEval"}
        others = " and ".join(named.get(each, each) for each in sorted(section(lineage, "benchmarks")))
        besides = f"and on {others}" if others else "and on nothing else"
        found.append(f"Success was measured on {evaluation['tasks']:,} procedural tasks, {besides}.")
    return found + _shown_by(figures(lineage), last_model(lineage))


def _shown_by(measured: list[Figure], last: str) -> list[str]:
    """Limits that the figures of the model on top show, beside those of the base model."""
    own = {each.name: each for each in measured if each.slice == last}
    base = {each.name: each for each in measured if each.slice == "base"}
    weak, broken = [], []
    for name, each in own.items():
        what = name.rpartition(".")[2]
        if name.startswith("greedy.by_family.") and each.high is not None and each.high < 0.5:
            weak.append(f"{what} ({each.value:.0%} of {each.n})")
        if name.startswith("greedy.principles_broken."):
            broken.append(f"{what} ({each.value:.0f})")
    found = []
    if weak:
        found.append(f"Task families that it solves in less than half of the cases, whole interval: {', '.join(weak)}.")
    if broken:
        found.append(f"Principles that its greedy replies still broke, and how often: {', '.join(broken)}.")
    for name in ("bpb_text", "bpb_code"):
        if name in own and name in base and own[name].value > base[name].value:
            worse = f"{base[name].value:.2f} for the base model, {own[name].value:.2f} for this one"
            found.append(
                f"It predicts {name.removeprefix('bpb_')} worse than before fine-tuning: bits per byte {worse}."
            )
    return found


def last_model(lineage: Lineage) -> str:
    """The name under which the model on top was evaluated: the evaluation that shares a model input with it."""
    model = lineage.top.record.inputs.get("model", lineage.top.digest)
    for part in lineage.parts.values():
        if part.record.kind == "evaluation" and part.record.inputs.get("model") == model:
            return part.record.name.rpartition("evaluation-")[2]
    return ""


def describe(lineage: Lineage) -> str:
    """One sentence on what the model is."""
    steps = [step for step in ("pretrain", "sft", "dpo") if any(p.record.step == step for p in lineage.parts.values())]
    names = {"pretrain": "pretrained", "sft": "fine-tuned on tool-use conversations", "dpo": "aligned by preferences"}
    return f"A small coding agent: {architecture(lineage) or 'GPT'}; {', then '.join(names[step] for step in steps)}."


def meaning(lineage: Lineage) -> Meaning:
    """All of it, as a bill of materials asks for it."""
    teaching = teachers(lineage)
    rules = taught_by_rules(lineage)

    def facts(part: Part) -> Mapping[str, str]:
        count = rows(part)
        told = {} if count is None else {"rows": str(count)}
        if part.record.kind in ("conversations", "pairs", "rollouts", "restyled") and teaching:
            told["taught_by"] = "rules, not a language model" if len(rules) == len(teaching) else str(teaching)
        if part.record.kind in ("instructions", "restyled", "pairs") and part.metrics.get("sources"):
            told["sources"] = ", ".join(sorted(part.metrics["sources"]))
        return told

    return Meaning(
        is_model=lambda part: part.record.kind in MODELS,
        is_data=lambda part: part.record.kind in DATA,
        licences=licences,
        facts=facts,
        description=describe(lineage),
        family="transformer network",
        architecture=architecture(lineage),
        task="text generation with tool calls",
        learning="self-supervised",
        figures=figures(lineage),
        limitations=limitations(lineage),
    )
