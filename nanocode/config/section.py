"""What every section of the configuration is: frozen, typed, closed to unknown keys, and sure of its identity.

Fields marked `not_identity` (addresses, concurrency, retry and checkpoint cadence) never decide what comes out of a
stage and so never enter a cache key; `identity` gives the rest.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

NOT_IDENTITY: dict[str, Any] = {"identity": False}


def not_identity(default: Any = ..., **kwargs: Any) -> Any:
    """A pydantic field that decides how a stage runs, not what it makes: left out of cache keys."""
    return Field(default, json_schema_extra=NOT_IDENTITY, **kwargs)


class ConfigError(ValueError):
    """A configuration that cannot be used. The message is one line: what, where, and the cure."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def identity(self) -> dict[str, Any]:
        """The values that decide this stage's output, as plain JSON data: what enters a cache key."""
        out: dict[str, Any] = {}
        for name, info in type(self).model_fields.items():
            if isinstance(info.json_schema_extra, dict) and info.json_schema_extra.get("identity") is False:
                continue
            out[name] = _plain(getattr(self, name))
        return out


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return value.identity()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
