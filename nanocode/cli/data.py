"""Look at training conversations and preference pairs: what is in a file, what is trained on, what was dropped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from nanocode.cli.context import model_folder, open_repository
from nanocode.cli.data_files import DataFileError, conversation_of, find_file, read_rows, report_beside, sides_of
from nanocode.cli.data_spans import Shown, bytes_tokenizer, shown, visible
from nanocode.cli.data_stats import figures_of
from nanocode.cli.options import AsJson
from nanocode.conversation import ConversationError
from nanocode.tokenizer import Tokenizer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

TRAINED_OPEN, TRAINED_CLOSE = "⟦", "⟧"
_STYLES = {"tool_result": "dim"}

File = Annotated[Path, typer.Argument(help="A conversations.jsonl or pairs.jsonl, or the folder that holds one.")]
TokenizerOption = Annotated[
    str | None,
    typer.Option("--tokenizer", metavar="MODEL", help="Count tokens by this model: a release, a digest or a folder."),
]


@app.callback()
def _commands() -> None:
    """Look at training conversations and preference pairs: what is in a file, what is trained on, what was dropped."""


@app.command()
def show(
    context: typer.Context,
    file: File,
    limit: Annotated[int, typer.Option(min=1, help="Rows to show, from the first on.")] = 5,
    skip: Annotated[int, typer.Option(min=0, help="Rows to pass over before.")] = 0,
    tokenizer: TokenizerOption = None,
    as_json: AsJson = False,
) -> None:
    """Print conversations; what the model is trained to say is green (piped: between ⟦ and ⟧), tool results are dim.

    Of pairs both sides are shown. What is trained on comes from the renderer that training uses, with its loss mask.
    """
    path, known = find_file(file), _tokenizer(context, tokenizer)
    console = Console(highlight=False, soft_wrap=True)
    documents = []
    for row in islice(read_rows(path), skip, skip + limit):
        sides = {side: _shown(row, messages, known) for side, messages in sides_of(row).items()}
        if as_json:
            documents.append({"id": row.get("id"), **_json_of(sides)})
        else:
            console.print(_row(row, sides, console.is_terminal, counted=tokenizer is not None))
    if as_json:
        typer.echo(json.dumps(documents, ensure_ascii=False))


@app.command()
def stats(
    context: typer.Context,
    file: File,
    tokenizer: TokenizerOption = None,
    near: Annotated[bool, typer.Option("--near", help="Look for near duplicates too (MinHash; slower).")] = False,
    as_json: AsJson = False,
) -> None:
    """Count what a file holds: lengths, tools, families, scores, violated principles, duplicates, drops by reason.

    Drops are those that the stage counted in the report.json beside the file. Without --tokenizer lengths are bytes.
    """
    path = find_file(file)
    known = None if tokenizer is None else _tokenizer(context, tokenizer)
    figures = figures_of(read_rows(path), known, near).to_json(report_beside(path))
    if as_json:
        typer.echo(json.dumps(figures, ensure_ascii=False))
        return
    console = Console(highlight=False)
    console.print(f"{path.name}: {figures['rows']:,} rows")
    for table in _tables(figures):
        console.print()
        console.print(table)


def _tokenizer(context: typer.Context, model: str | None) -> Tokenizer:
    if model is None:
        return bytes_tokenizer()
    folder = Path(model) if Path(model).is_dir() else model_folder(open_repository(context.obj.store), model)
    return Tokenizer.load(folder / "tokenizer.json")


def _shown(row: Mapping[str, Any], messages: Any, tokenizer: Tokenizer) -> Shown:
    try:
        return shown(conversation_of(row, messages), tokenizer)
    except ConversationError as error:
        raise DataFileError(f"row {row.get('id')}: {error}") from None


def _json_of(sides: Mapping[str, Shown]) -> dict[str, Any]:
    if "" in sides:
        return sides[""].to_json()
    return {side: each.to_json() for side, each in sides.items()}


def _row(row: Mapping[str, Any], sides: Mapping[str, Shown], in_colour: bool, counted: bool) -> RenderableType:
    """One row under its title; on a terminal the sides of a pair stand beside each other."""
    titles = [str(row[name]) for name in ("id", "variant", "register") if row.get(name) is not None]
    parts: list[RenderableType] = [Text(visible("  ".join(titles)), style="bold")]
    columns = {side: [_heading(side, each, counted), *_turns(each, in_colour)] for side, each in sides.items()}
    if in_colour and len(columns) > 1:
        beside = Table(box=None, show_header=False, padding=(0, 2, 0, 0), expand=True)
        for _ in columns:
            beside.add_column(ratio=1, overflow="fold")
        beside.add_row(*(Group(*texts) for texts in columns.values()))
        parts.append(beside)
    else:
        parts += [text for texts in columns.values() for text in texts]
    return Group(*(part for part in parts if not isinstance(part, Text) or part.plain), Text(""))


def _heading(side: str, each: Shown, counted: bool) -> Text:
    lengths = f"{each.tokens:,} tokens, {each.trained_tokens:,} of them trained" if counted else ""
    return Text(": ".join(part for part in (side, lengths) if part), style="bold cyan")


def _turns(each: Shown, in_colour: bool) -> list[Text]:
    lines = []
    for role, spans in each.turns():
        line = Text(f"{role}: ", style="bold" if in_colour else "")
        for span in spans:
            text = visible(span.text)
            if span.trained and not in_colour:
                text = f"{TRAINED_OPEN}{text}{TRAINED_CLOSE}"
            line.append(text, style="not bold green" if span.trained else f"not bold {_STYLES.get(role, 'default')}")
        lines.append(line)
    return lines


def _tables(figures: Mapping[str, Any]) -> list[Table]:
    lengths = Table("length", box=None, header_style="bold", pad_edge=False)
    titles = list(next(iter(figures["lengths"].values()), {}))
    for title in titles:
        lengths.add_column(title, justify="right")
    for name, values in figures["lengths"].items():
        lengths.add_row(name, *(f"{values[title]:,}" for title in titles))
    counted = [_count_table(name, counts) for name, counts in figures["counts"].items()]
    reported = [_count_table(f"{name} (report.json)", counts) for name, counts in figures["report"].items() if counts]
    return [lengths, *counted, *reported]


def _count_table(name: str, counts: Mapping[str, Any]) -> Table:
    table = Table(name, box=None, header_style="bold", pad_edge=False)
    table.add_column("", justify="right")
    for value, count in counts.items():
        table.add_row(visible(value), f"{count:,}" if isinstance(count, int) else str(count))
    return table
