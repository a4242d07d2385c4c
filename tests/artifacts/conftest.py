"""A store in a temporary folder, and a small first-party tree whose code the stages of these tests claim to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from artifacts.build import Build, Built, RunInfo, Stage, build
from artifacts.fingerprint import forget_sources
from artifacts.repository import Repository
from artifacts.store import open_store

RUN = RunInfo(flow="TestFlow", run_id="7", user="tester")

SOURCES = {
    "steps/__init__.py": "",
    "steps/data.py": "import nanocode.text\n",
    "steps/train.py": "from nanocode import optimizer\n",
    "nanocode/__init__.py": "",
    "nanocode/text.py": "def clean(text):\n    return text.strip()\n",
    "nanocode/optimizer.py": "RATE = 0.1\n",
    "nanocode/server.py": "PORT = 80\n",
}


@dataclass
class Workshop:
    """A project tree, a repository, and what the warnings and reports said."""

    root: Path
    repository: Repository
    warnings: list[str] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        forget_sources()

    def build(self, stage: Stage, produce: Callable[[Build], Mapping[str, Any] | None], **kwargs: Any) -> Built:
        def counted(making: Build) -> Mapping[str, Any] | None:
            self.made.append(stage.step)
            return produce(making)

        arguments = {"root": self.root, "run": RUN, "work_root": self.root / "work", "report": self.reports.append}
        return build(self.repository, stage, counted, **(arguments | kwargs))

    def data(self, config: Mapping[str, Any] | None = None, text: str = "some text") -> Built:
        """A source stage that writes two files."""

        def produce(making: Build) -> Mapping[str, Any]:
            (making.output / "train").mkdir()
            (making.output / "train" / "0.txt").write_text(text)
            (making.output / "index.json").write_text("{}")
            return {"documents": 1}

        return self.build(Stage("data", "tokens", "nano/data", "steps.data", config or {"seed": 1}), produce)

    def train(self, tokens: Built, rate: float = 0.5, **kwargs: Any) -> Built:
        """A stage that depends on `data` and writes one file derived from it."""

        def produce(making: Build) -> Mapping[str, Any]:
            text = (making.inputs["tokens"] / "train" / "0.txt").read_text()
            (making.output / "weights.bin").write_bytes(f"{rate}:{text}".encode())
            return {"loss": 1.5}

        stage = Stage("train", "model", "nano/train", "steps.train", {"rate": rate}, {"tokens": tokens.record_digest})
        return self.build(stage, produce, **kwargs)

    def object(self, name: str) -> Path:
        """The file that holds an object, for tests that play the vandal."""
        return self.root / "store" / name

    def overwrite(self, name: str, data: bytes) -> None:
        self.object(name).chmod(0o644)
        self.object(name).write_bytes(data)


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    shop = Workshop(tmp_path, Repository(open_store("file:store", tmp_path)))
    shop.repository.warn = shop.warnings.append
    for name, text in SOURCES.items():
        shop.write(name, text)
    return shop
