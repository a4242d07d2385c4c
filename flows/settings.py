"""The flow's config file as Metaflow wants it: plain data, and faults as exceptions that it prints in one line."""

from __future__ import annotations

from typing import Any

from metaflow.exception import MetaflowException

from nanocode.config import ConfigError
from nanocode.config_file import read_values


class BadConfig(MetaflowException):
    headline = "Bad configuration"


def read_config(text: str) -> dict[str, Any]:
    """TOML text as plain data, checked. Raises BadConfig."""
    try:
        return read_values(text)
    except ConfigError as error:
        raise BadConfig(str(error)) from None
