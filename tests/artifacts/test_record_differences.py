"""Differences: none exactly when the canonical JSON agrees; put into the old, they give the new."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.canonical import canonical_json
from artifacts.differences import ABSENT, Difference, differences, shown

KEYS = st.text("abc", min_size=1, max_size=2)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, -0.0, 1.0, 0.5]) | st.text("xy", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
MAPPINGS = st.dictionaries(KEYS, PLAIN, max_size=3)


@given(MAPPINGS, MAPPINGS)
def test_there_is_a_difference_exactly_when_the_canonical_json_differs(old, new):
    assert (differences(old, new) == ()) == (canonical_json(old) == canonical_json(new))


@given(MAPPINGS, MAPPINGS)
def test_the_other_way_round_the_same_paths_differ_with_sides_exchanged(old, new):
    back = tuple(Difference(each.path, each.new, each.old) for each in differences(new, old))
    assert differences(old, new) == back


@given(MAPPINGS, MAPPINGS)
def test_putting_every_difference_into_the_old_gives_the_new(old, new):
    patched = copy.deepcopy(old)
    for each in differences(old, new):
        _put(patched, each.path.replace("[", ".[").split("."), each.new)
    assert canonical_json(_without_absent(patched)) == canonical_json(new)


def _put(value, path, new):
    *way, last = [int(part[1:-1]) if part.startswith("[") else part for part in path]
    for part in way:
        value = value[part]
    if isinstance(value, list) and last == len(value):
        value.append(new)
    else:
        value[last] = new


def _without_absent(value):
    if isinstance(value, dict):
        return {key: _without_absent(item) for key, item in value.items() if item is not ABSENT}
    return [_without_absent(item) for item in value if item is not ABSENT] if isinstance(value, list) else value


def test_paths_lead_through_mappings_and_lists():
    old = {"pretrain": {"optimizer": {"muon_lr": 0.02, "beta": 0.9}}, "sources": [{"weight": 1.0}, {"weight": 2.0}]}
    new = copy.deepcopy(old)
    new["pretrain"]["optimizer"]["muon_lr"] = 0.03
    new["sources"][1]["weight"] = 2.5
    assert differences(old, new) == (
        Difference("pretrain.optimizer.muon_lr", 0.02, 0.03),
        Difference("sources[1].weight", 2.0, 2.5),
    )


@pytest.mark.parametrize(("old", "new"), [(1, 1.0), (1, True), (0, False), (0.0, -0.0), (None, False), ("1", 1)])
def test_values_that_python_calls_equal_but_a_cache_key_does_not_differ(old, new):
    assert differences({"a": old}, {"a": new}) == (Difference("a", old, new),)


def test_what_one_side_lacks_is_absent_and_not_null():
    added, removed = differences({"b": None}, {"a": None})
    assert (added, removed) == (Difference("a", ABSENT, None), Difference("b", None, ABSENT))
    assert [json.loads(json.dumps(each.to_json())) for each in (added, removed)] == [
        {"path": "a", "new": None},
        {"path": "b", "old": None},
    ]
    assert added.describe() == "a: only in the new, null"
    assert removed.describe() == "b: only in the old, null"


def test_a_list_that_grew_differs_at_its_end():
    assert differences({"a": [1, 2]}, {"a": [1, 2, 3]}) == (Difference("a[2]", ABSENT, 3),)


@pytest.mark.parametrize("value", ["x" * 10_000, list(range(10_000)), {f"key{index}": "y" * 99 for index in range(50)}])
def test_a_description_stays_one_short_line(value):
    line = Difference("config.value", value, ABSENT).describe()
    assert len(line) < 140
    assert "\n" not in line
    assert f"{len(value):,}" in line


def test_short_values_are_shown_as_json():
    assert Difference("a", [1, "ä"], {"b": None}).describe() == 'a: [1, "ä"] -> {"b": null}'
    assert shown(2.5) == "2.5"
