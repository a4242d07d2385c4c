"""What a released model brings to its own evaluation: config, constitution, recorded figures, held-out text."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from artifacts.records import Record
from artifacts.repository import Repository, blob_name, fetch_files
from nanocode.cli.model_loading import Found
from nanocode.config import ConfigError, EvaluationConfig

# The release is of the aligned model: its own evaluation is this one.
_OWN = "dpo"
_SHARDS = "shards."


def evaluation_config(folder: Path) -> EvaluationConfig:
    """How the model was evaluated when it was made. Raises ConfigError for a folder that does not say."""
    path = folder / "config.json"
    try:
        return EvaluationConfig.model_validate(json.loads(path.read_text(encoding="utf-8"))["evaluation"])
    except FileNotFoundError:
        return EvaluationConfig()
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        raise ConfigError(f"{path} does not say how the model is evaluated: {' '.join(str(error).split())}") from None


def recorded_figures(folder: Path) -> Mapping[str, Any]:
    """What the evaluation stage found, with intervals; empty for a folder without metrics."""
    path = folder / "metrics.json"
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["details"][_OWN]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} does not hold the figures of a release: {error!r}") from None
    return found if isinstance(found, dict) else {}


@contextmanager
def held_out_shards(repository: Repository, found: Found) -> Iterator[dict[str, list[Path]]]:
    """Folders with the held-out documents on which the model was evaluated, by register ("text", "code").

    Only the validation shards are fetched, verified. Raises ConfigError for a model without a lineage, ArtifactError.
    """
    if not found.digest:
        raise ConfigError(
            f"{found.folder} is a folder without a lineage, so its held-out text is not known: name a release, or "
            "ask for --suite agent,soul"
        )
    evaluation = _evaluation(repository, repository.read_record(found.digest))
    registers = evaluation.config["registers"]
    with tempfile.TemporaryDirectory(prefix="nanocode-eval-") as temporary:
        folders: dict[str, list[Path]] = {}
        for role, digest in sorted(evaluation.inputs.items()):
            if role.startswith(_SHARDS):
                name = role.removeprefix(_SHARDS)
                files = [each for each in repository.read_record(digest).files if each.path.startswith("validation-")]
                fetch_files(repository.store, files, Path(temporary) / name, blob_name)
                folders.setdefault(registers[name], []).append(Path(temporary) / name)
        yield folders


def recorded_inputs(repository: Repository, found: Found) -> Mapping[str, str]:
    """The records that the model's own evaluation read, by role. Raises ConfigError for a model without one."""
    return _evaluation(repository, repository.read_record(found.digest)).inputs


def _evaluation(repository: Repository, release: Record) -> Record:
    digest = release.inputs.get(f"evaluation.{_OWN}")
    if digest is None:
        raise ConfigError(f"record {release.digest[:12]} is no release with an evaluation: name a release")
    return repository.read_record(digest)
