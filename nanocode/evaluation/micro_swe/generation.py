"""micro-SWE: small repositories with a bug, an issue that tells of it, and a test that fails because of it.

A repository is some modules of right functions with their tests. One mutation of one function, kept because the
function's own test fails with it, is the bug; the issue is the prompt. Everything follows from the seed, and none of
the functions, modules or wordings occurs in the families that models are trained on.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import Any

from nanocode.evaluation.micro_swe.functions import FUNCTIONS, Function
from nanocode.evaluation.micro_swe.mutations import KINDS, Kind, mutations
from nanocode.tasks.task import Expectation, Task, TaskError

FAMILY = "micro-swe"
MODULES = 3
_FUNCTIONS_A_MODULE = 2
_ATTEMPTS = 400
_ISSUES = (
    "{module}.py has a bug: {call} {got}, but it should return {want}. Fix it. "
    "The test is `python -m unittest test_{module}`.",
    "`python -m unittest test_{module}` fails: {call} should be {want}, but it {got}. "
    "The test is right, the code is wrong. Fix the code.",
    "test_{name} in test_{module}.py has been failing lately. Find the bug, fix it, and leave the tests as they are.",
)


@dataclass(frozen=True)
class Repository:
    """Right sources: modules by name, each with its functions' sources by name, `$` numbers drawn."""

    modules: Mapping[str, Mapping[str, str]]

    def files(self, changed: Mapping[str, str] | None = None) -> dict[str, str]:
        """Modules and tests; `changed` replaces functions by name."""
        out: dict[str, str] = {}
        for module, functions in self.modules.items():
            sources = [(changed or {}).get(name, source) for name, source in functions.items()]
            out[f"{module}.py"] = "\n\n".join([*self._imports(module), *sources])
            out[f"test_{module}.py"] = self._tests(module)
        return out

    def sources(self) -> dict[str, str]:
        """Every function's source by name."""
        return {name: source for functions in self.modules.values() for name, source in functions.items()}

    def _imports(self, module: str) -> list[str]:
        used = {other for name in self.modules[module] for other in FUNCTIONS[name].uses}
        lines = [
            f"from {FUNCTIONS[other].module} import {other}\n"
            for other in sorted(used)
            if FUNCTIONS[other].module != module
        ]
        return ["".join(lines)] if lines else []

    def _tests(self, module: str) -> str:
        functions, sources = self.modules[module], self.sources()
        rows = [f"import unittest\n\nfrom {module} import {', '.join(sorted(functions))}\n\n"]
        rows.append(f"class Test{module.title()}(unittest.TestCase):")
        for name in functions:
            rows.append(f"    def test_{name}(self):")
            for arguments in FUNCTIONS[name].inputs:
                want = outcome(sources, name, arguments).value
                rows.append(f"        self.assertEqual({_call(name, arguments)}, {want!r})")
            rows.append("")
        return "\n".join(rows)


@dataclass(frozen=True)
class Outcome:
    """What a call gave: a value, or the name of an exception."""

    value: Any = None
    exception: str = ""

    def __str__(self) -> str:
        return f"raises {self.exception}" if self.exception else f"returns {self.value!r}"


def micro_swe_tasks(n: int, seed: int) -> list[Task]:
    """`n` different tasks; the first k of n are those that asking for k gives. `variant` is the kind of bug.

    Raises TaskError when there are not so many different ones.
    """
    found: dict[str, Task] = {}
    for index in range(n):
        for attempt in range(_ATTEMPTS):
            task = _draw(index, random.Random(f"{seed}/{FAMILY}/{index}/{attempt}"))
            if task is not None and task.id not in found:
                found[task.id] = task
                break
        else:
            raise TaskError(f"there are too few different micro-SWE tasks for n={n}: ask for fewer")
    return list(found.values())


def outcome(sources: Mapping[str, str], name: str, arguments: Sequence[Any]) -> Outcome:
    """What `name(*arguments)` gives among these sources, which are this project's own and bounded."""
    namespace: dict[str, Any] = {}
    exec("\n\n".join(sources.values()), namespace)
    try:
        return Outcome(namespace[name](*copy.deepcopy(arguments)))
    except Exception as error:  # noqa: BLE001 - what a mutant raises is what is asked for
        return Outcome(exception=type(error).__name__)


def _draw(index: int, rng: random.Random) -> Task | None:
    """A task with a bug of the kind whose turn it is; None when the draw's function has no such bug that shows."""
    kind = KINDS[index % len(KINDS)]
    function = rng.choice(list(FUNCTIONS.values()))
    repository = _repository(function, rng)
    right = repository.sources()
    candidates = [each.source for each in mutations(right[function.name]) if each.kind == kind]
    rng.shuffle(candidates)
    for candidate in candidates:
        wrong = {**right, function.name: candidate}
        for arguments in function.inputs:
            want, got = (outcome(sources, function.name, arguments) for sources in (right, wrong))
            if want != got:
                issue = rng.choice(_ISSUES).format(
                    module=function.module,
                    name=function.name,
                    call=_call(function.name, arguments),
                    got=got,
                    want=repr(want.value),
                )
                return _task(kind, issue, repository.files({function.name: candidate}), repository.files())
    return None


def _task(kind: Kind, issue: str, files: Mapping[str, str], fixed: Mapping[str, str]) -> Task:
    return Task.make(
        family=FAMILY,
        variant=kind,
        held_out_variant=True,
        split="eval",
        prompt=issue,
        files=files,
        expect=Expectation(files=dict(fixed), facts=(), tools=("Edit|Bash",)),
    )


def _repository(function: Function, rng: random.Random) -> Repository:
    """The function's module, those that it needs, and others up to `MODULES`, each with few functions."""
    modules = [function.module]
    others = sorted({each.module for each in FUNCTIONS.values()} - {function.module})
    rng.shuffle(others)
    chosen = [function]
    for module in [*modules, *others[: MODULES - 1]]:
        candidates = [each for each in FUNCTIONS.values() if each.module == module and each is not function]
        wanted = _FUNCTIONS_A_MODULE - (module == function.module)
        chosen += rng.sample(candidates, min(wanted, len(candidates)))
    needed = [FUNCTIONS[name] for each in chosen for name in each.uses]
    every = {each.name: each for each in [*chosen, *needed]}
    in_order = [each for each in FUNCTIONS.values() if each.name in every]
    drawn = {each.name: _filled(each, rng) for each in in_order}
    return Repository(
        {
            module: {each.name: drawn[each.name] for each in in_order if each.module == module}
            for module in sorted({each.module for each in in_order})
        }
    )


def _filled(function: Function, rng: random.Random) -> str:
    numbers = {name: str(rng.choice(choices)) for name, choices in sorted(function.numbers.items())}
    return Template(function.source).substitute(numbers)


def _call(name: str, arguments: Sequence[Any]) -> str:
    return f"{name}({', '.join(map(repr, arguments))})"
