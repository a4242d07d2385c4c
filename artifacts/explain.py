"""Why a stage would be made: the key that is asked for against the nearest one that was committed, field by field.

Keys keep their payload, so a miss can be explained by what was hashed, and by nothing else: the config values, the
content of the inputs, the modules of the code. The environment is not hashed; what differs there is told apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from artifacts.canonical import canonical_json
from artifacts.differences import ABSENT, Difference, differences
from artifacts.records import ArtifactError, Fingerprint
from artifacts.repository import READERS, Key, Repository, key_name, parallel, stem

MAX_KEYS = 20_000
MAX_TIES = 64
SHOWN_NAMES = 3


@dataclass(frozen=True)
class Explanation:
    """What tells an asked key from the nearest committed one, `against` (None: nothing of that stage was committed).

    `config` differences have paths in the stage's config, `inputs` have roles, `modules` the names of modules; `code`
    says whether the fingerprint differs, which `modules` cannot when the record is gone.
    """

    against: Key | None
    code: bool = False
    config: tuple[Difference, ...] = ()
    inputs: tuple[Difference, ...] = ()
    modules: tuple[Difference, ...] = ()

    def lines(self, in_short: bool = False) -> list[str]:
        """One line for every field; `in_short`, one for all edited modules."""
        if self.against is None:
            return ["nothing of this stage was made before"]
        lines = [f"config {each.describe()}" for each in self.config]
        lines += [f"input {each.path}: {_content(each)}" for each in self.inputs]
        if in_short and len(self.modules) > 1:
            return [*lines, f"code edited: {listed([each.path for each in self.modules])}"]
        lines += [f"code {each.path}: {_change(each)}" for each in self.modules]
        if self.code and not self.modules:
            lines.append("code: another fingerprint")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        groups = {"config": self.config, "inputs": self.inputs, "modules": self.modules}
        against = {"key": self.against.key, "record": self.against.record} if self.against else None
        plain = {name: [each.to_json() for each in found] for name, found in groups.items()}
        return {"against": against, "code_differs": self.code} | plain


@dataclass
class KeyIndex:
    """Every committed key of a store by step, read once: a survey asks it about each of its stages."""

    repository: Repository
    _by_step: dict[str, list[Key]] | None = field(default=None, repr=False)

    def of_step(self, step: str) -> list[Key]:
        """The keys of one step. At most `MAX_KEYS` of the store are read; more are left out with a warning."""
        if self._by_step is None:
            self._by_step = self._read()
        return self._by_step.get(step, [])

    def nearest(self, payload: Mapping[str, Any], name: str = "") -> Key | None:
        """The committed key of the payload's step that differs from it in the fewest fields.

        Of equally near ones (`MAX_TIES` are looked at) those whose record has that `name` come first, then the newest.
        Inputs that are not known yet (None in place of a content digest) count as the same.
        """
        scored = [(_distance(key.payload, payload), key) for key in self.of_step(payload["step"])]
        least = min((distance for distance, _ in scored), default=0)
        return self._best([key for distance, key in scored if distance == least], name)

    def differing_in_code(self, payload: Mapping[str, Any], name: str = "") -> Key | None:
        """The committed key with the payload's step, config and inputs, made by other code; of several as `nearest`."""
        asked, code = canonical_json(payload), payload["code"]
        others = [key for key in self.of_step(payload["step"]) if key.payload["code"] != code]
        return self._best([key for key in others if canonical_json({**key.payload, "code": code}) == asked], name)

    def _best(self, keys: list[Key], name: str) -> Key | None:
        tied = keys[:MAX_TIES]
        if len(tied) < 2:
            return tied[0] if tied else None
        ranks = parallel(lambda key: self._rank(key, name), tied, READERS)
        return max(zip(ranks, tied, strict=True), key=lambda pair: (*pair[0], pair[1].key))[1]

    def _read(self) -> dict[str, list[Key]]:
        names = list(islice(self.repository.store.list("keys/"), MAX_KEYS + 1))
        if len(names) > MAX_KEYS:
            self.repository.warn(f"only {MAX_KEYS:,} of the store's cache keys were compared: collect what is unused")
        by_step: dict[str, list[Key]] = {}
        for key in parallel(self._key, names[:MAX_KEYS], READERS):
            if key is not None:
                by_step.setdefault(str(key.payload.get("step")), []).append(key)
        return by_step

    def _key(self, name: str) -> Key | None:
        try:
            return self.repository.read_key(stem(name))
        except ArtifactError as error:
            self.repository.warn(str(error))
            return None

    def _rank(self, key: Key, name: str) -> tuple[bool, float]:
        try:
            named = bool(name) and self.repository.read_record(key.record).name == name
        except ArtifactError:
            named = False
        return named, self.repository.store.modified(key_name(key.key)) or 0.0


def nearest(repository: Repository, payload: Mapping[str, Any], name: str = "") -> Key | None:
    """`KeyIndex.nearest` for a single question."""
    return KeyIndex(repository).nearest(payload, name)


def explain(repository: Repository, payload: Mapping[str, Any], code: Fingerprint, against: Key | None) -> Explanation:
    """The fields in which an asked payload, of the code `code`, differs from a committed key."""
    if against is None:
        return Explanation(None)
    old = against.payload
    return Explanation(
        against,
        old.get("code") != payload["code"],
        differences(old.get("config", {}), payload["config"]),
        _input_differences(old.get("inputs", {}), payload["inputs"]),
        _modules(repository, against, code) if old.get("code") != payload["code"] else (),
    )


def environment_differences(made: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Where the environment of a making differs from another in what may decide bytes.

    Only what both name is compared: a process that has not started an accelerator cannot name its devices.
    """
    shared = (made.keys() & now.keys()) - {"platform"}
    return differences({name: made[name] for name in shared}, {name: now[name] for name in shared})


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    left = len(names) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f" and {left} more" if left > 0 else "")


def _distance(old: Mapping[str, Any], new: Mapping[str, Any]) -> int:
    changed = len(differences(old.get("config", {}), new["config"]))
    inputs = len(_input_differences(old.get("inputs", {}), new["inputs"]))
    return changed + inputs + (old.get("code") != new["code"])


def _input_differences(old: Mapping[str, str], new: Mapping[str, str | None]) -> tuple[Difference, ...]:
    known = {role: old[role] if content is None and role in old else content for role, content in new.items()}
    return differences(old, known)


def _modules(repository: Repository, against: Key, code: Fingerprint) -> tuple[Difference, ...]:
    try:
        before = repository.read_record(against.record).code.modules
    except ArtifactError:
        return ()
    # Module names hold dots, which are no levels here.
    names = sorted({*before, *code.modules})
    pairs = ((name, before.get(name, ABSENT), code.modules.get(name, ABSENT)) for name in names)
    return tuple(Difference(name, old, new) for name, old, new in pairs if old != new)


def _content(each: Difference) -> str:
    if each.old is ABSENT:
        return "there was no such input"
    return "no longer an input" if each.new is ABSENT else f"other content ({_short(each.old)} -> {_short(each.new)})"


def _short(digest: str | None) -> str:
    return digest[:12] if digest else "not known yet"


def _change(each: Difference) -> str:
    if each.old is ABSENT:
        return "newly imported"
    return "no longer imported" if each.new is ABSENT else "changed"
