"""Whether figures that were measured again agree with those on record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["same", "agrees", "differs"]

# Other devices and library versions sum in another order; a model of other weights is further off than this.
BITS_TOLERANCE = 1e-3
GROUPS = ("by_variant", "by_family")
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
    for name, (new, old) in pairs.items():
        verdict: Verdict = "agrees" if new["low"] <= old["high"] and old["low"] <= new["high"] else "differs"
        if (new["hits"], new["n"]) == (old["hits"], old["n"]):
            verdict = "same"
        yield Comparison(f"{decoding}.{name}", new["rate"], old["rate"], verdict)
