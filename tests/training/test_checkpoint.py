from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nanocode.training import checkpoint
from nanocode.training.checkpoint import Checkpointer, shapes_of, snapshot


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


def save(checkpointer: Checkpointer, step: int, saved: Any, **details: Any) -> None:
    checkpointer.save(step, saved, lambda: f"notes {step}", details)


def restore(store: Any, like: Any, **kwargs: Any) -> Any:
    found = Checkpointer(store).restore(shapes_of(like), **kwargs)
    assert found is not None
    return found.state


def test_the_newest_saved_state_comes_back_bit_for_bit_with_its_notes(store: Any) -> None:
    checkpointer = Checkpointer(store)
    for step in (1, 2, 3):
        save(checkpointer, step, state(step))
    checkpointer.close()
    found = Checkpointer(store).restore(shapes_of(state()))
    assert found is not None
    assert equal(found.state, state(3))
    assert found.notes == "notes 3"


def test_the_newest_one_that_fits_comes_back(store: Any) -> None:
    checkpointer = Checkpointer(store, keep=3)
    for step in (1, 2, 3):
        save(checkpointer, step, state(step), odd=step % 2 == 1)
    checkpointer.close()
    assert equal(restore(store, state(), fits=lambda details: not details["odd"]), state(2))
    assert Checkpointer(store).restore(shapes_of(state()), lambda details: False) is None


def test_without_a_checkpoint_there_is_nothing_to_restore(store: Any) -> None:
    assert Checkpointer(store).restore(shapes_of(state())) is None


def test_a_restored_state_lies_where_the_asked_one_lay(store: Any) -> None:
    """Bound to a device or not decides whether the step has to be compiled again."""
    free, bound = jnp.arange(3.0), jax.device_put(jnp.arange(4.0), jax.devices()[0])
    checkpointer = Checkpointer(store)
    save(checkpointer, 1, {"free": free, "bound": bound, "host": np.ones(2)})
    checkpointer.close()
    found = restore(store, {"free": free, "bound": bound, "host": np.ones(2)})
    traces: list[int] = []
    count = jax.jit(lambda x: traces.append(1) or x + 1)
    count(free), count(found["free"])
    assert len(traces) == 1
    assert found["bound"].sharding == bound.sharding
    assert isinstance(found["host"], np.ndarray)


def test_a_state_split_over_devices_comes_back_split(store: Any) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    split = {"x": jax.device_put(jnp.arange(6.0), place)}
    checkpointer = Checkpointer(store)
    save(checkpointer, 1, split)
    checkpointer.close()
    found = restore(store, split)
    assert found["x"].sharding == place
    assert np.array_equal(found["x"], np.arange(6.0))


@pytest.mark.parametrize("device", [False, True])
def test_a_save_keeps_the_state_of_its_moment(store: Any, device: bool) -> None:
    """The training step reuses the buffers while the save is still being written."""
    overwrite = jax.jit(lambda x: x * 0 + 2, donate_argnums=0)
    buffer: Any = jnp.ones(4) if device else np.ones(4, np.float32)
    committing, release = threading.Event(), threading.Event()
    write = store.save

    def slow(step: int, folder: Path, details: Any) -> None:
        committing.set()
        assert release.wait(20)
        write(step, folder, details)

    store.save = slow
    checkpointer = Checkpointer(store)
    save(checkpointer, 1, {"x": buffer})
    assert checkpointer.busy
    if device:
        overwrite(buffer)
        assert buffer.is_deleted()
    else:
        buffer[:] = 2
    assert committing.wait(20)
    assert store.latest() is None, "not visible before it is committed"
    release.set()
    checkpointer.close()
    assert not checkpointer.busy
    assert np.array_equal(restore(store, {"x": np.empty(4, np.float32)})["x"], np.ones(4))


@pytest.mark.parametrize(("free_bytes", "on_device"), [(None, True), (16, True), (15, False)])
def test_a_copy_is_made_on_the_device_if_it_has_room(
    monkeypatch: pytest.MonkeyPatch, free_bytes: int | None, on_device: bool
) -> None:
    array = jnp.arange(4, dtype=jnp.float32)
    stats = None if free_bytes is None else {"bytes_limit": 1_000 + free_bytes, "peak_bytes_in_use": 1_000}
    monkeypatch.setattr(checkpoint, "_memory", lambda device: stats)
    copy = snapshot({"x": array})["x"]
    assert isinstance(copy, jax.Array) == on_device
    assert np.array_equal(copy, array)
    if on_device:
        assert copy.unsafe_buffer_pointer() != array.unsafe_buffer_pointer()


def test_saves_commit_in_order_and_old_ones_are_pruned(store: Any) -> None:
    checkpointer = Checkpointer(store, keep=2)
    for step in (1, 2, 3, 4):
        save(checkpointer, step, state(step))
    checkpointer.close()
    assert store.saved == [1, 2, 3, 4]
    assert store.pruned == [2] * 4
    assert sorted(int(folder.name) for folder in store.root.iterdir()) == [3, 4]


@pytest.mark.parametrize("finish", ["wait", "close", "save"])
def test_a_save_that_fails_is_told_by_the_next_call(store: Any, finish: str) -> None:
    store.failing = OSError("the disk is full")
    checkpointer = Checkpointer(store)
    save(checkpointer, 1, state())
    with pytest.raises(OSError, match="the disk is full"):
        save(checkpointer, 2, state()) if finish == "save" else getattr(checkpointer, finish)()
    assert store.latest() is None


def test_a_failure_is_told_once_and_the_next_save_can_succeed(store: Any) -> None:
    store.failing = OSError("the network is down")
    checkpointer = Checkpointer(store)
    save(checkpointer, 1, state(1))
    with pytest.raises(OSError, match="the network is down"):
        checkpointer.wait()
    store.failing = None
    save(checkpointer, 2, state(2))
    checkpointer.close()
    assert store.saved == [2]


@pytest.mark.parametrize(
    "like",
    [np.ones((5, 3), np.float32), np.ones((1, 3), np.float32), np.ones((3, 2), np.float32)],
    ids=["longer", "shorter", "transposed"],
)
def test_a_checkpoint_of_another_state_is_refused(store: Any, like: np.ndarray) -> None:
    first = Checkpointer(store)
    save(first, 1, {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})
    first.close()
    with pytest.raises(ValueError):  # Orbax refuses some of these itself
        restore(store, {"x": like})
