from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nanocode.training.checkpoint import Checkpointer


def state(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "parameters": {"blocks": {0: {"up": jnp.asarray(rng.normal(size=(3, 4)), jnp.float32)}}},
        "optimizer": (jnp.asarray(rng.normal(size=5), jnp.bfloat16), jnp.asarray(7 + seed, jnp.int32)),
        "step": jnp.asarray(seed, jnp.int32),
    }


def equal(one: Any, other: Any) -> bool:
    same = jax.tree.map(lambda a, b: a.dtype == b.dtype and np.array_equal(a, b), one, other)
    return all(jax.tree.leaves(same)) and jax.tree.structure(one) == jax.tree.structure(other)


def test_the_newest_saved_state_comes_back_bit_for_bit(store: Any) -> None:
    checkpointer = Checkpointer(store)
    for step in (1, 2, 3):
        checkpointer.save(step, state(step))
    checkpointer.close()
    assert equal(Checkpointer(store).restore(state()), state(3))


def test_without_a_checkpoint_there_is_nothing_to_restore(store: Any) -> None:
    assert Checkpointer(store).restore(state()) is None


def test_a_save_keeps_the_state_of_its_moment(store: Any) -> None:
    """The training step reuses the buffers while the save is still being written."""
    buffer = np.ones(4, np.float32)
    committing, release = threading.Event(), threading.Event()
    write = store.save

    def slow(step: int, folder: Path, details: Any) -> None:
        committing.set()
        assert release.wait(20)
        write(step, folder, details)

    store.save = slow
    checkpointer = Checkpointer(store)
    checkpointer.save(1, {"x": buffer})
    buffer[:] = 2
    assert committing.wait(20)
    assert store.latest() is None, "not visible before it is committed"
    release.set()
    checkpointer.close()
    assert np.array_equal(Checkpointer(store).restore({"x": buffer})["x"], np.ones(4))


def test_saves_commit_in_order_and_old_ones_are_pruned(store: Any) -> None:
    checkpointer = Checkpointer(store, keep=2)
    for step in (1, 2, 3, 4):
        checkpointer.save(step, state(step))
    checkpointer.close()
    assert store.saved == [1, 2, 3, 4]
    assert store.pruned == [2] * 4
    assert sorted(int(folder.name) for folder in store.root.iterdir()) == [3, 4]


@pytest.mark.parametrize("finish", ["wait", "close", "save"])
def test_a_save_that_fails_is_told_by_the_next_call(store: Any, finish: str) -> None:
    store.failing = OSError("the disk is full")
    checkpointer = Checkpointer(store)
    checkpointer.save(1, state())
    with pytest.raises(OSError, match="the disk is full"):
        checkpointer.save(2, state()) if finish == "save" else getattr(checkpointer, finish)()
    assert store.latest() is None


def test_a_failure_is_told_once_and_the_next_save_can_succeed(store: Any) -> None:
    store.failing = OSError("the network is down")
    checkpointer = Checkpointer(store)
    checkpointer.save(1, state(1))
    with pytest.raises(OSError, match="the network is down"):
        checkpointer.wait()
    store.failing = None
    checkpointer.save(2, state(2))
    checkpointer.close()
    assert store.saved == [2]


@pytest.mark.parametrize(
    "like",
    [np.ones((5, 3), np.float32), np.ones((1, 3), np.float32), np.ones((3, 2), np.float32)],
    ids=["longer", "shorter", "transposed"],
)
def test_a_checkpoint_of_another_state_is_refused(store: Any, like: np.ndarray) -> None:
    first = Checkpointer(store)
    first.save(1, {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})
    first.close()
    with pytest.raises(ValueError):  # Orbax refuses some of these itself
        Checkpointer(store).restore({"x": like})
