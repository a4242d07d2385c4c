"""A small config over files of one's own, for tests in which stages are shown and not made."""

from __future__ import annotations

from pathlib import Path

SHOW = """
name = "show"
[[data.sources]]
name = "prose"
kind = "files"
register_as = "text"
licence = "MIT"
glob = "{folder}/*.txt"
[model]
depth = 1
[constitution]
sft_tasks = 24
preference_tasks = 48
"""


def show_config(folder: Path, more: str = "") -> str:
    """The config as text, with `more` behind it; its one source, a file, is written into `folder`."""
    (folder / "text").mkdir()
    (folder / "text" / "a.txt").write_text("some prose\n")
    return SHOW.format(folder=folder / "text") + more
