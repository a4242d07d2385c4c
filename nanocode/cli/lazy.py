"""A group of commands whose modules are imported only when they run, so that `nanocode --help` stays fast.

The one-line help comes from the source of the command's function, read without importing it. A command whose module
is not there is not listed.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

_PROJECT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class ModuleCommand:
    """Where a command is: a function, or a Typer app of subcommands, called `attribute` in `module`."""

    module: str
    attribute: str

    @property
    def source(self) -> Path:
        return _PROJECT.joinpath(*self.module.split(".")).with_suffix(".py")

    def short_help(self) -> str:
        """The first line of the function's docstring, or of the module's for a group of subcommands."""
        tree = ast.parse(self.source.read_bytes())
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == self.attribute:
                return (ast.get_docstring(node) or "").partition("\n")[0]
        return (ast.get_docstring(tree) or "").partition("\n")[0]

    def load(self) -> Any:
        """Import the module; returns the command."""
        found = getattr(importlib.import_module(self.module), self.attribute)
        if not isinstance(found, typer.Typer):
            function = found
            found = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            found.command()(function)
        return get_command(found)


def module_command(target: str) -> ModuleCommand:
    """Read `package.module:attribute`."""
    module, _, attribute = target.partition(":")
    return ModuleCommand(module, attribute)


class _LazyCommand(TyperCommand):
    """Stands in for a command in listings; becomes the real one when it is called."""

    def __init__(self, name: str, command: ModuleCommand) -> None:
        super().__init__(name, help=command.short_help())
        self._module_command = command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self._module_command.load().make_context(info_name, args, parent=parent, **extra)


class LazyGroup(TyperGroup):
    """A Typer group with the commands of `lazy_commands`, listed in that order."""

    lazy_commands: ClassVar[Mapping[str, ModuleCommand]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name, command in self.lazy_commands.items() if command.source.is_file()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = self.lazy_commands.get(cmd_name)
        return _LazyCommand(cmd_name, command) if command is not None and command.source.is_file() else None
