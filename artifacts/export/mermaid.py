"""The lineage as a Mermaid flow chart: raw sources on top, every record once, roles on the edges."""

from __future__ import annotations

from collections.abc import Iterator

from artifacts.export.lineage import Lineage

# In a quoted label these end the label, start an entity or are read as HTML.
_ENTITIES = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "\n": " ", "\r": " ", "`": "#96;"}


def mermaid(lineage: Lineage) -> str:
    """The chart's text, for a ```mermaid block or an .mmd file."""
    return "".join(f"{line}\n" for line in _lines(lineage))


def _lines(lineage: Lineage) -> Iterator[str]:
    names = {digest: f"r{index}" for index, digest in enumerate(lineage.parts)}
    yield "flowchart TD"
    for digest, part in lineage.parts.items():
        title = f"{part.record.name} ({lineage.title})" if digest == lineage.top.digest else part.record.name
        yield f'    {names[digest]}["{_text(part.record.step)}<br/>{_text(title)}<br/>{digest[:12]}"]'
    for digest, part in lineage.parts.items():
        for role, each in sorted(part.record.inputs.items()):
            yield f'    {names[each]} -->|"{_text(role)}"| {names[digest]}'


def _text(text: str) -> str:
    return "".join(_ENTITIES.get(character, character) for character in text)
