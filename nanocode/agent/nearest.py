"""Where a text that is not in a file was probably meant to be: one short hint for whoever tries again."""

from __future__ import annotations

from difflib import SequenceMatcher

SIMILAR = 0.6
# Comparing letter by letter is slow, and a hint is not worth a wait.
MAX_LINES = 2_000
COMPARED_CHARACTERS = 200
SHOWN_CHARACTERS = 80


def hint(lines: list[str], old: str) -> str:
    """Names the line of the file that comes nearest to the first line of ``old``; empty when none is like it."""
    wanted = [line for line in old.split("\n") if line.strip()]
    if not wanted:
        return ""
    if wanted[0] in lines:
        return f"line {lines.index(wanted[0]) + 1} is its first line, but the rest differs" if wanted[1:] else ""
    squeezed = ["".join(line.split()) for line in lines]
    spaceless = "".join(wanted[0].split())
    if spaceless in squeezed:
        return _named(squeezed.index(spaceless), lines, "differs in white space only")
    if len(lines) > MAX_LINES:
        return ""
    matcher = SequenceMatcher(autojunk=False, b=wanted[0].strip()[:COMPARED_CHARACTERS])
    best, best_ratio = -1, SIMILAR
    for index, line in enumerate(lines):
        matcher.set_seq1(line.strip()[:COMPARED_CHARACTERS])
        if matcher.real_quick_ratio() > best_ratio and matcher.quick_ratio() > best_ratio:
            ratio = matcher.ratio()
            if ratio > best_ratio:
                best, best_ratio = index, ratio
    return _named(best, lines, "is nearest") if best >= 0 else ""


def _named(index: int, lines: list[str], how: str) -> str:
    return f"line {index + 1} {how}: {lines[index][:SHOWN_CHARACTERS]!r}"
