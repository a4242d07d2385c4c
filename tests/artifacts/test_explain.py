"""The nearest committed key and what differs from it: config by path, inputs by role, code by module."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from artifacts.build import Built, Stage, cache_key
from artifacts.explain import Explanation, KeyIndex, environment_differences, explain, nearest
from artifacts.fingerprint import FIRST_PARTY, code_fingerprint
from artifacts.repository import Key, key_name


def train_stage(tokens: Built, rate: float = 0.5, **more: Any) -> Stage:
    config = {"rate": rate} | more
    return Stage("train", "model", "nano/train", "steps.train", config, {"tokens": tokens.record_digest})


def asked(workshop, stage: Stage) -> tuple[Explanation, Key | None]:
    _, payload = cache_key(workshop.repository, stage, workshop.root)
    found = nearest(workshop.repository, payload, stage.name)
    code = code_fingerprint(stage.module, FIRST_PARTY, workshop.root)
    return explain(workshop.repository, payload, code, found), found


def age(workshop, built: Built, seconds: float) -> None:
    """Make a key older than it is."""
    path: Path = workshop.object(key_name(built.key))
    os.utime(path, (path.stat().st_mtime - seconds,) * 2)


def test_a_stage_that_was_never_made_has_no_nearest_key(workshop):
    explanation, found = asked(workshop, train_stage(workshop.data()))
    assert found is None
    assert explanation.lines() == ["nothing of this stage was made before"]


def test_a_committed_key_is_its_own_nearest_without_a_difference(workshop):
    data = workshop.data()
    trained = workshop.train(data)
    explanation, found = asked(workshop, train_stage(data))
    assert found is not None and found.record == trained.record_digest
    assert explanation.lines() == []


def test_a_changed_value_is_named_by_its_path(workshop):
    data = workshop.data()
    workshop.train(data)
    explanation, _ = asked(workshop, train_stage(data, rate=0.25))
    assert explanation.lines() == ["config rate: 0.5 -> 0.25"]
    assert not explanation.code


def test_an_edited_module_is_named_and_nothing_else(workshop):
    data = workshop.data()
    workshop.train(data)
    workshop.write("nanocode/optimizer.py", "from nanocode import server\nRATE = 0.2\n")
    explanation, _ = asked(workshop, train_stage(data))
    assert explanation.lines() == ["code nanocode.optimizer: changed", "code nanocode.server: newly imported"]
    assert explanation.code and not explanation.config and not explanation.inputs


def test_other_content_is_named_by_its_role(workshop):
    workshop.train(workshop.data())
    explanation, _ = asked(workshop, train_stage(workshop.data({"seed": 2}, "other text")))
    (line,) = explanation.lines()
    assert line.startswith("input tokens: other content (")


def test_the_key_with_the_fewest_differences_is_the_nearest(workshop):
    data = workshop.data()
    far = workshop.build(train_stage(data, rate=0.1, depth=3), lambda making: _write(making, "far"))
    near = workshop.build(train_stage(data, rate=0.2, depth=4), lambda making: _write(making, "near"))
    age(workshop, near, 3600)
    explanation, found = asked(workshop, train_stage(data, rate=0.3, depth=4))
    assert found is not None and found.record == near.record_digest != far.record_digest
    assert explanation.lines() == ["config rate: 0.2 -> 0.3"]


def test_of_equally_near_keys_the_newest_is_taken(workshop):
    data = workshop.data()
    first, second = workshop.train(data, rate=0.1), workshop.train(data, rate=0.2)
    age(workshop, second, 3600)
    _, found = asked(workshop, train_stage(data, rate=0.3))
    assert found is not None and found.record == first.record_digest
    age(workshop, first, 7200)
    _, found = asked(workshop, train_stage(data, rate=0.3))
    assert found is not None and found.record == second.record_digest


def test_of_equally_near_keys_the_same_artifact_comes_before_a_newer_one(workshop):
    data = workshop.data()
    own = workshop.train(data, rate=0.1)
    other = replace(train_stage(data, rate=0.2), name="nano/other")
    workshop.build(other, lambda making: _write(making, "other"))
    age(workshop, own, 3600)
    _, found = asked(workshop, train_stage(data, rate=0.3))
    assert found is not None and found.record == own.record_digest


def test_an_input_that_is_not_known_yet_counts_as_the_same(workshop):
    data = workshop.data()
    workshop.train(data)
    _, payload = cache_key(workshop.repository, train_stage(data, rate=0.25), workshop.root)
    unknown = payload | {"inputs": {"tokens": None}}
    found = nearest(workshop.repository, unknown)
    code = code_fingerprint("steps.train", FIRST_PARTY, workshop.root)
    assert explain(workshop.repository, unknown, code, found).lines() == ["config rate: 0.5 -> 0.25"]


def test_an_altered_key_is_left_out_with_a_warning(workshop):
    data = workshop.data()
    trained = workshop.train(data)
    workshop.overwrite(key_name(trained.key), b'{"record": "x", "payload": {"step": "train"}}')
    _, found = asked(workshop, train_stage(data))
    assert found is None
    assert "was altered" in workshop.warnings[-1]


def test_the_store_is_listed_once_however_many_stages_ask(workshop, monkeypatch: pytest.MonkeyPatch):
    data = workshop.data()
    for number in range(5):
        workshop.train(data, rate=number / 10)
    listed: list[str] = []
    real = workshop.repository.store.list
    monkeypatch.setattr(workshop.repository.store, "list", lambda prefix: listed.append(prefix) or real(prefix))
    index = KeyIndex(workshop.repository)
    _, payload = cache_key(workshop.repository, train_stage(data), workshop.root)
    assert {index.nearest(payload) is not None for _ in range(4)} == {True}
    assert listed == ["keys/"]


def test_only_what_both_environments_name_is_compared():
    made = {"python": "3.11.1", "jax": "0.6", "platform": "a", "devices": ["cpu"]}
    now = {"python": "3.12.0", "jax": "0.6", "platform": "b"}
    assert [each.describe() for each in environment_differences(made, now)] == ['python: "3.11.1" -> "3.12.0"']


def _write(making, text: str) -> None:
    (making.output / "weights.bin").write_text(text)
