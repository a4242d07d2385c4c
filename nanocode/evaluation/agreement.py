"""Whether figures that were measured again agree with those on record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["same", "agrees", "differs"]

# Other devices and library versions sum in another order; a model of other weights is further off than this.
BITS_TOLERANCE = 1e-3
GROUPS = ("by_variant", "by_family")
# What must be the same for the figures of a benchmark to be comparable.
BENCHMARKS = {"core": ("bundle", "examples_per_task"), "human_eval": ("way", "samples", "temperature", "problems")}
RATES = ("success", "valid_calls", "called_when_needed", "finished", "soul")


@dataclass(frozen=True)
class Comparison:
    """One figure, twice. A rate agrees when the two 95 % intervals meet, bits per byte when they are within 0.1 %."""

    figure: str
    measured: float
    recorded: float
    verdict: Verdict


def compare_figures(measured: Mapping[str, Any], recorded: Mapping[str, Any]) -> list[Comparison]:
    """What is in both. Each side is as the evaluation stage writes it: ``bpb_*``, and rates under each decoding."""
    found = []
    for name in sorted(measured):
        if name.startswith("bpb_") and recorded.get(name) is not None:
            found.append(_bits(name, measured[name], recorded[name]))
    for decoding in ("greedy", "sampled"):
        if decoding in measured and decoding in recorded:
            found += _rates(decoding, measured[decoding], recorded[decoding])
    for name, decides in BENCHMARKS.items():
        new, old = measured.get(name, {}), recorded.get(name, {})
        if new and old and all(new.get(each) == old.get(each) for each in decides):
            found += _benchmark(name, new, old)
    return found


def _bits(name: str, measured: float, recorded: float) -> Comparison:
    close = abs(measured - recorded) <= BITS_TOLERANCE * abs(recorded)
    return Comparison(name, measured, recorded, "same" if measured == recorded else "agrees" if close else "differs")


def _rates(decoding: str, measured: Mapping[str, Any], recorded: Mapping[str, Any]) -> Iterator[Comparison]:
    pairs = {name: (measured[name], recorded[name]) for name in RATES if name in measured and name in recorded}
    for group in GROUPS:
        for member, rate in measured.get(group, {}).items():
            if member in recorded.get(group, {}):
                pairs[f"{group}.{member}"] = rate, recorded[group][member]
    stages, known = (each.get("funnel", {}).get("tasks", {}) for each in (measured, recorded))
    pairs |= {f"funnel.{stage}": (rate, known[stage]) for stage, rate in stages.items() if stage in known}
    for name, (new, old) in pairs.items():
        yield _rate(f"{decoding}.{name}", new, old)


def _benchmark(name: str, measured: Mapping[str, Any], recorded: Mapping[str, Any]) -> Iterator[Comparison]:
    """The accuracy of each task of CORE, or every pass@k and pass^k."""
    new, old = measured.get("tasks", measured), recorded.get("tasks", recorded)
    for each in new:
        if each in old and isinstance(new[each], Mapping) and "rate" in new[each]:
            yield _rate(f"{name}.{each}", new[each], old[each])


def _rate(figure: str, new: Mapping[str, Any], old: Mapping[str, Any]) -> Comparison:
    verdict: Verdict = "agrees" if new["low"] <= old["high"] and old["low"] <= new["high"] else "differs"
    if (new["rate"], new["n"]) == (old["rate"], old["n"]):
        verdict = "same"
    return Comparison(figure, new["rate"], old["rate"], verdict)
