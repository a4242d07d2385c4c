"""A model version's card in Markdown.

Every line comes from a record or a provenance; what they do not say is not here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from artifacts.costs import AMOUNTS, StageCost, total
from artifacts.environments import Environments
from artifacts.export.cyclonedx import Figure
from artifacts.export.lineage import Lineage, Part
from nanocode.cli import meaning

_SHOWN = (
    ("tasks solved", "greedy.success"),
    ("tasks solved, sampled", "sampled.success"),
    ("tasks solved, held-out variants", "greedy.by_variant.held_out"),
    ("valid tool calls", "greedy.valid_calls"),
    ("SOUL kept", "greedy.soul"),
    ("SOUL kept, sampled", "sampled.soul"),
    ("preference accuracy, held-out pairs", "preference.accuracy"),
    ("bits per byte, text", "bpb_text"),
    ("bits per byte, code", "bpb_code"),
)
_ORDER = ("base", "sft", "dpo")
_TRAINING = ("pretrain", "sft", "dpo")


def model_card(lineage: Lineage, costs: Sequence[StageCost], found: Environments, signed_by: str | None) -> str:
    """The card. `costs` and `found` are of the same record; `signed_by` is the id of the key, None when unsigned."""
    sections = (
        ("", _what(lineage)),
        ("Results", _results(lineage)),
        ("Data", _data(lineage)),
        ("Instruction sets", _instructions(lineage)),
        ("Data that was generated", _generated(lineage)),
        ("Training", _training(lineage)),
        ("Environment", _environment(lineage, found)),
        ("Cost", _cost(costs)),
        ("How to check it", _check(lineage, signed_by)),
        ("Known limits", _list(meaning.limitations(lineage))),
        ("Configuration", _configuration(lineage)),
    )
    lines = [f"# {lineage.title}", ""]
    for title, content in sections:
        told = list(content)
        if told:
            lines += [*([f"## {title}", ""] if title else []), *told, ""]
    return "\n".join(lines).rstrip() + "\n"


def _what(lineage: Lineage) -> Iterator[str]:
    release, top = lineage.release, lineage.top
    yield meaning.describe(lineage)
    yield ""
    if release is not None:
        yield f"- released {release.created} as `{lineage.title}`"
    yield f"- record `{top.digest}`"
    yield f"- content `{top.record.content_digest}`, {len(top.record.files)} files, {top.record.total_bytes:,} bytes"
    commits = {each.made.git.get("commit"): each.made.git.get("dirty") for each in lineage.parts.values() if each.made}
    for commit, dirty in commits.items():
        if commit:
            yield f"- code at commit `{commit}`{' with local changes' if dirty else ''}"
    for part in lineage.parts.values():
        if part.made is not None and part.made.run.get("reused"):
            yield f"- `{part.record.name}` was made from a record whose code had been edited since (`--reuse`)"


def _results(lineage: Lineage) -> Iterator[str]:
    figures = {(each.name, each.slice): each for each in meaning.figures(lineage)}
    models = [name for name in _ORDER if any(name == part for _, part in figures)]
    if not models:
        return
    yield "Rates with their 95 % Wilson interval and n. Every model had the same tasks."
    yield ""
    rows = [
        [label, *(_figure(figures.get((name, model))) for model in models)]
        for label, name in _SHOWN
        if any((name, model) in figures for model in models)
    ]
    yield from _table(["", *models], rows)
    last = models[-1]
    families = [each for (name, part), each in figures.items() if part == last and name.startswith("greedy.by_family.")]
    if families:
        yield ""
        yield f"Tasks solved by family, {last}:"
        yield ""
        yield from _table(["family", last], [[each.name.rpartition(".")[2], _figure(each)] for each in families])


def _figure(figure: Figure | None) -> str:
    if figure is None:
        return ""
    if figure.n is None or figure.low is None or figure.high is None:
        return f"{figure.value:.3f}"
    return f"{figure.value:.1%} ({figure.low:.1%} to {figure.high:.1%}, n = {figure.n:,})"


def _data(lineage: Lineage) -> Iterator[str]:
    shards = _parts(lineage, "shards")
    weights: Mapping[str, Any] = next(
        (part.record.config.get("weights", {}) for part in _parts(lineage, "model", "pretrain")), {}
    )
    rows = []
    for part in shards:
        metrics, source = part.metrics, str(part.metrics.get("source", part.record.name))
        kept = metrics.get("kept", {})
        rows.append(
            [
                source,
                str(part.record.config.get("source", {}).get("kind", "")),
                str(metrics.get("register", "")),
                f"{kept.get('documents', 0):,}",
                f"{kept.get('bytes', 0):,}",
                _counts(metrics.get("licences", {})),
                str(weights.get(source, "")),
                _counts(metrics.get("skipped", {})) or "none",
            ]
        )
    header = ["source", "kind", "register", "documents", "bytes", "licences", "weight", "dropped, by reason"]
    yield from _table(header, rows)
    for part in shards:
        found = {name: each.get("matches", 0) for name, each in part.metrics.get("filters", {}).items()}
        if found:
            actions = part.record.config.get("source", {}).get("filters", {})
            told = ", ".join(f"{name} {count:,} ({actions.get(name, '?')})" for name, count in sorted(found.items()))
            yield ""
            yield f"Personal data and secrets found in {part.metrics.get('source')}: {told}."


def _instructions(lineage: Lineage) -> Iterator[str]:
    converted, restyled = _parts(lineage, "instructions"), _parts(lineage, "restyled")
    rows = [
        [
            part.record.name,
            str(part.metrics.get("kind", "restyled")),
            _counts(part.metrics.get("sources", {})),
            f"{part.metrics.get('rows', part.metrics.get('tasks', 0)):,}",
            f"{meaning.rows(part) or 0:,}",
            _counts(part.metrics.get("licences", {})),
            _counts(part.metrics.get("dropped", {})) or "none",
        ]
        for part in (*converted, *restyled)
    ]
    header = ["artifact", "kind", "source and revision", "rows", "kept", "licences", "dropped, by reason"]
    yield from _table(header, rows)
    if rows:
        yield ""
        yield "Written by others, not under the constitution; their tool calls were executed, and no result is made up."
    if restyled:
        yield "Of the restyled ones, the words were judged and revised under it."


def _generated(lineage: Lineage) -> Iterator[str]:
    teachers, rules = meaning.teachers(lineage), meaning.taught_by_rules(lineage)
    parts = [*_parts(lineage, "conversations"), *_parts(lineage, "pairs")]
    if not parts or not teachers:
        return
    yield f"Models asked: {', '.join(f'{part} `{model}`' for part, model in teachers.items())}."
    if rules:
        yield ""
        yield (
            f"**Taught by rules.** {', '.join(rules).capitalize()}: not a language model but the rules that come with "
            "the project."
        )
    yield ""
    rows = [
        [
            part.record.name,
            f"{part.metrics.get('tasks', 0):,}",
            f"{part.metrics.get('kept', 0):,}",
            _counts(part.metrics.get("dropped", {})) or "none",
            _counts(part.metrics.get("gate", {})),
            f"{meaning.rows(part) or 0:,}",
        ]
        for part in parts
    ]
    yield from _table(["artifact", "tasks", "kept", "dropped, by reason", "gate", "rows"], rows)


def _training(lineage: Lineage) -> Iterator[str]:
    parts = [part for step in _TRAINING for part in _parts(lineage, "model", step)]
    rows = []
    for part in parts:
        metrics, own = part.metrics, part.record.config.get(part.record.step, {})
        curve = metrics.get("curve") or [{}]
        batch = own.get("batch_tokens") or own.get("batch_pairs")
        unit = "tokens" if own.get("batch_tokens") else "pairs"
        rows.append(
            [
                part.record.step,
                f"{metrics.get('steps', 0):,}",
                f"{metrics.get('tokens', 0):,}",
                f"{batch:,} {unit}" if batch else "by the recipe",
                str(own.get("optimizer", {}).get("recipe", "")),
                f"{curve[-1].get('loss', float('nan')):.3f}",
                str(len(metrics.get("returns", []))),
            ]
        )
    header = ["stage", "steps", "tokens", "batch", "optimizer recipe", "last loss", "returns to a checkpoint"]
    yield from _table(header, rows)


def _environment(lineage: Lineage, found: Environments) -> Iterator[str]:
    made = lineage.top.made
    if made is None:
        return
    devices = sorted(
        {
            str(kind)
            for part in lineage.parts.values()
            if part.made is not None
            for kind in part.made.environment.get("devices", [])
        }
    )
    versions = {name: value for name, value in made.environment.items() if value is not None and name != "devices"}
    yield (
        ", ".join(f"{name} {value}" for name, value in versions.items()) + f"; devices: {', '.join(devices) or 'none'}"
    )
    for line in found.describe():
        yield ""
        yield f"Note: {line}."


def _cost(costs: Sequence[StageCost]) -> Iterator[str]:
    sums = total(costs)
    shown = [name for name in AMOUNTS if name in sums]
    rows = [
        [each.step, each.name, *(f"{each.amounts[name]:,.6g}" if name in each.amounts else "" for name in shown)]
        for each in costs
    ]
    rows.append(["**total**", "", *(f"{sums[name]:,.10g}" for name in shown)])
    yield from _table(["stage", "artifact", *(name.replace("_", " ") for name in shown)], rows)
    unpriced = [each.name for each in costs if each.is_unpriced]
    if unpriced:
        yield ""
        yield f"No price is known for {', '.join(unpriced)}."


def _check(lineage: Lineage, signed_by: str | None) -> Iterator[str]:
    yield f"Made from {len(lineage.parts)} records, from the raw sources up; each names its files by sha256."
    yield ""
    yield "```"
    yield f"nanocode lineage verify {lineage.title if lineage.release else lineage.top.digest[:16]}"
    yield "```"
    yield ""
    yield "Signed: " + ("no." if signed_by is None else f"with key `{signed_by}` (give --public-key FILE to check it).")


def _configuration(lineage: Lineage) -> Iterator[str]:
    yield "What was left to the recipe (null in the record) is left out."
    yield ""
    yield "```json"
    yield json.dumps(_given(lineage.top.record.config), indent=2, sort_keys=True)
    yield "```"


def _given(value: Any) -> Any:
    """The value without nulls, and without the mappings that held nothing else."""
    if isinstance(value, Mapping):
        kept = {key: _given(each) for key, each in value.items() if each is not None}
        return {key: each for key, each in kept.items() if each != {} or value[key] == {}}
    return [_given(each) for each in value] if isinstance(value, list) else value


def _parts(lineage: Lineage, kind: str, step: str | None = None) -> list[Part]:
    found = [
        part
        for part in lineage.parts.values()
        if part.record.kind == kind and (step is None or part.record.step == step)
    ]
    return sorted(found, key=lambda part: part.record.name)


def _counts(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))


def _list(lines: Iterable[str]) -> Iterator[str]:
    yield from (f"- {line}" for line in lines)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if rows:
        yield _row(header)
        yield _row(["---"] * len(header))
        yield from (_row(row) for row in rows)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    """A licence or a source may be called anything: no name may end its cell or be read as HTML."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
