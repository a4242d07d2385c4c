import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.tasks.words import (
    NOUNS,
    QUALIFIERS,
    SPLITS,
    VERBS,
    Names,
    constant_names,
    function_names,
    pool_of,
)


def test_every_pair_belongs_to_exactly_one_split():
    functions = [name for split in SPLITS for name in function_names(split)]
    constants = [name for split in SPLITS for name in constant_names(split)]
    assert len(functions) == len(set(functions)) == len(VERBS) * len(NOUNS)
    assert len(constants) == len(set(constants)) == len(QUALIFIERS) * len(NOUNS)


@pytest.mark.parametrize(
    ("split", "share"), [("sft", 0.70), ("preference", 0.10), ("validation", 0.05), ("eval", 0.15)]
)
def test_splits_have_about_their_shares(split, share):
    assert abs(len(function_names(split)) / (len(VERBS) * len(NOUNS)) - share) < 0.03
    assert abs(len(constant_names(split)) / (len(QUALIFIERS) * len(NOUNS)) - share) < 0.05


def test_every_word_is_seen_in_training_though_its_pairs_are_held_out():
    trained = {word for name in function_names("sft") for word in name.split("_")}
    trained |= {word for name in constant_names("sft") for word in name.split("_")}
    assert trained >= {*VERBS, *NOUNS, *QUALIFIERS, *(noun.upper() for noun in NOUNS)}


PINNED = {
    "add_age": "sft",
    "add_box": "eval",
    "BASE_AREA": "eval",
    "add_key": "preference",
    "BASE_HOUR": "validation",
}


def test_pools_do_not_move_between_versions():
    # A name that moved would carry a released model's training data into a later model's evaluation.
    assert {name: pool_of(name) for name in PINNED} == PINNED


def test_file_names_do_not_shadow_the_standard_library():
    assert not set(NOUNS) & sys.stdlib_module_names
    assert not {f"test_{noun}" for noun in NOUNS} & sys.stdlib_module_names


@given(st.integers(0, 10**6), st.sampled_from(SPLITS))
def test_a_task_never_draws_a_name_twice_and_stays_in_its_split(seed, split):
    names = Names(split, random.Random(seed))
    functions = [names.function() for _ in range(4)]
    constants = [names.constant() for _ in range(4)]
    others = [names.path() for _ in range(4)] + [names.value() for _ in range(4)]
    drawn = functions + constants + others
    assert len(drawn) == len(set(drawn))
    assert {pool_of(name) for name in functions + constants} == {split}
