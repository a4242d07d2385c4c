"""A CORE bundle made of the standard library's own words, and a tokenizer and a model of a few lines to answer it.

    .venv/bin/python benchmarks/core_made_up.py FOLDER        # write the bundle

The same interpreter writes the same bytes. Nothing but the standard library and NumPy is needed, so that two projects
can be asked with one tokenizer and one function to logits, each in its own environment.
"""

from __future__ import annotations

import importlib
import inspect
import json
import random
import re
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = 512
BOS = 0
CONTEXT_TOKENS = 512
MODULES = (
    "argparse", "ast", "bisect", "calendar", "collections", "configparser", "contextlib", "csv", "dataclasses",
    "datetime", "decimal", "difflib", "email.message", "fractions", "functools", "gzip", "heapq", "http.client",
    "inspect", "ipaddress", "json", "logging", "mailbox", "pathlib", "pickle", "random", "re", "sched", "shutil",
    "socket", "sqlite3", "statistics", "string", "subprocess", "tarfile", "tempfile", "textwrap", "threading",
    "tokenize", "traceback", "typing", "unittest", "urllib.parse", "uuid", "wave", "xml.dom.minidom", "zipfile",
)  # fmt: skip
ROWS = 120
_WORD = re.compile(r"\s?\w+|\s+|[^\w\s]+")
_PIECE_CHARACTERS = 4


def encode(text: str) -> list[int]:
    """Words with the space before them, in pieces of four characters, each hashed to an id; no id is BOS."""
    pieces = (
        word[start : start + _PIECE_CHARACTERS]
        for word in _WORD.findall(text)
        for start in range(0, len(word), _PIECE_CHARACTERS)
    )
    return [1 + zlib.crc32(piece.encode()) % (VOCABULARY - 1) for piece in pieces]


def logits(ids: np.ndarray) -> np.ndarray:
    """(T,) ids -> (T, V) float32: a random table of pairs, and what followed the same id before."""
    out = _table()[np.asarray(ids)].copy()
    seen: dict[int, int] = {}
    for position, token in enumerate(np.asarray(ids).tolist()):
        if token in seen:
            out[position, ids[seen[token] + 1]] += 5.0
        seen[token] = position
    return out


def _table() -> np.ndarray:
    if not _TABLES:
        _TABLES.append(np.random.default_rng(7).normal(0.0, 1.5, (VOCABULARY, VOCABULARY)).astype(np.float32))
    return _TABLES[0]


_TABLES: list[np.ndarray] = []


def write_bundle(folder: Path) -> None:
    """Five tasks of the three types, with 0 to 10 examples, one of them with contexts that end in spaces."""
    tasks = {
        "made_up_summaries": ("multiple_choice", 10, "\nAnswer: ", 25, _summaries(4, random.Random(1))),
        "made_up_endings": ("multiple_choice", 0, " ", 50, _summaries(2, random.Random(2))),
        "made_up_names": ("schema", 0, " ", 50, _names(random.Random(3))),
        "made_up_last_words": ("language_modeling", 0, " ", 0, _last_words(random.Random(4))),
        "made_up_repeated_words": ("language_modeling", 3, " ", 0, _repeated(random.Random(5))),
    }
    (folder / "eval_data" / "made_up").mkdir(parents=True, exist_ok=True)
    entries, lines = [], ["Eval Task,Task Category,Task Type,#shots,#datapoints,Random baseline"]
    for label, (kind, shots, delimiter, baseline, rows) in tasks.items():
        entries += [
            f"- label: {label}",
            f"  dataset_uri: made_up/{label}.jsonl",
            f"  num_fewshot: [{shots}]",
            f"  icl_task_type: {kind}",
            f"  continuation_delimiter: {json.dumps(delimiter)}",
        ]
        lines.append(f"{label},made up,{kind.replace('_', ' ')},{shots},{len(rows)},{baseline}")
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / "eval_data" / "made_up" / f"{label}.jsonl").write_text(text, encoding="utf-8")
    (folder / "core.yaml").write_text("icl_tasks:\n" + "\n".join(entries) + "\n", encoding="utf-8")
    (folder / "eval_meta_data.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _documented() -> list[tuple[str, str]]:
    """Names of functions and classes with the first sentence of what they say of themselves."""
    found = {}
    for module in MODULES:
        for name, thing in sorted(vars(importlib.import_module(module)).items()):
            if not name.startswith("_") and (inspect.isfunction(thing) or inspect.isclass(thing)):
                sentence = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
                if 30 < len(sentence) < 160 and getattr(thing, "__module__", "") == module:
                    found[name] = sentence
    return sorted(found.items())


def _summaries(options: int, draw: random.Random) -> list[dict[str, Any]]:
    known = _documented()
    rows = []
    for name, sentence in draw.sample(known, ROWS):
        others = draw.sample([other for _, other in known if other != sentence], options - 1)
        gold = draw.randrange(options)
        choices = [*others[:gold], sentence, *others[gold:]]
        rows.append({"query": f"What does {name} do?", "choices": choices, "gold": gold})
    return rows


def _names(draw: random.Random) -> list[dict[str, Any]]:
    known = _documented()
    rows = []
    for name, sentence in draw.sample(known, ROWS):
        (other,) = draw.sample([each for each, _ in known if each != name], 1)
        gold = draw.randrange(2)
        contexts = [f"{each} is what" for each in ([name, other] if gold == 0 else [other, name])]
        rows.append({"context_options": contexts, "continuation": f"says: {sentence}", "gold": gold})
    return rows


def _last_words(draw: random.Random) -> list[dict[str, Any]]:
    rows = []
    for _, sentence in draw.sample(_documented(), ROWS):
        *first, last = sentence.split()
        rows.append({"context": " ".join(first) + "  ", "continuation": last})
    return rows


def _repeated(draw: random.Random) -> list[dict[str, Any]]:
    return [
        {"context": f"They call it {name}: {sentence} They call it", "continuation": name}
        for name, sentence in draw.sample(_documented(), ROWS)
    ]


if __name__ == "__main__":
    write_bundle(Path(sys.argv[1]))
