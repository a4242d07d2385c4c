"""Reading a configuration: TOML, overrides, and every fault in one line that names the cure.

Apart from `nanocode.config`, because stages depend on what a section is and not on how it was read: an edit to a
message here changes no cache key.
"""

from __future__ import annotations

import copy
import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nanocode.config import (
    Config,
    ConfigError,
    EvaluationSet,
    FilesSource,
    FilterConfig,
    HubSource,
    PythonDocsSource,
    PythonStdlibSource,
    Section,
)


def load(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Read and validate a TOML file; `overrides` are ``section.key=value`` with TOML values. Raises ConfigError."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"no config file at {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    return parse(text, overrides, where=str(path))


def parse(text: str, overrides: Sequence[str] = (), where: str = "config") -> Config:
    """Validate TOML text. Raises ConfigError with one line per fault."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}") from error
    for override in overrides:
        _override(values, override)
    return validate(values, where)


def read_values(text: str) -> dict[str, Any]:
    """TOML text as plain data, checked: what Metaflow stores of a config file. Raises ConfigError."""
    parse(text)
    return tomllib.loads(text)


def with_overrides(values: Mapping[str, Any], overrides: Sequence[str]) -> Config:
    """The configuration of plain data with overrides applied. Raises ConfigError."""
    changed = copy.deepcopy(dict(values))
    for override in overrides:
        _override(changed, override)
    return validate(changed)


def validate(values: Mapping[str, Any], where: str = "config") -> Config:
    """Validate plain data. Raises ConfigError with one line per fault, the nearest valid name for an unknown key."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        lines = [_explain(fault) for fault in error.errors()]
        raise ConfigError(f"{where}: " + "; ".join(lines)) from None


def _override(values: dict[str, Any], override: str) -> None:
    """Set ``a.b.c=value`` in nested tables; a value that is not TOML counts as a string."""
    dotted, separator, raw = override.partition("=")
    if not separator or not dotted.strip():
        raise ConfigError(f"override {override!r} must look like section.key=value")
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw
    *parents, last = dotted.strip().split(".")
    table = values
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise ConfigError(f"override {override!r}: {parent} is not a section")
    table[last] = value


def _explain(fault: Any) -> str:
    location = [part for index, part in enumerate(fault["loc"]) if index != _KIND_POSITION or part not in _SOURCE_KINDS]
    dotted = ".".join(str(part) for part in location)
    if fault["type"] == "extra_forbidden":
        *parents, unknown = location
        names = _fields_at(parents)
        close = difflib.get_close_matches(str(unknown), names, n=1, cutoff=0.5)
        section = ".".join(str(part) for part in parents) or "the top level"
        hint = f"did you mean {close[0]!r}?" if close else f"{section} takes: {', '.join(sorted(names))}"
        return f"unknown key {dotted!r}: {hint}"
    if fault["type"] == "missing":
        return f"{dotted} is missing"
    return f"{dotted or 'config'}: {fault['msg']} (got {fault['input']!r})"


# In the location of a fault, pydantic names the kind of a source after its number: data.sources.0.files.glob.
_KIND_POSITION = 3
_SOURCE_KINDS = {"python_docs", "python_stdlib", "files", "hub"}


def _fields_at(location: Sequence[Any]) -> set[str]:
    """The valid keys of the section at `location`; within data.sources, those of every kind of source."""
    if list(location[:2]) == ["data", "sources"]:
        if "filters" in location:
            return set(FilterConfig.model_fields)
        kinds = (PythonDocsSource, PythonStdlibSource, FilesSource, HubSource)
        return {name for kind in kinds for name in kind.model_fields}
    if list(location[:3]) == ["data", "decontamination", "sets"]:
        return set(EvaluationSet.model_fields)
    section: Any = Config
    for part in location:
        info = section.model_fields.get(str(part))
        if info is None or not isinstance(info.annotation, type) or not issubclass(info.annotation, Section):
            return set()
        section = info.annotation
    return set(section.model_fields)
