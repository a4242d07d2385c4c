"""A step is compiled once for each shape of its arguments, and computes what it computed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nanocode.training.compiled import compiled_before_use, return_free_memory


def test_it_compiles_once_for_each_shape() -> None:
    traced = []

    @jax.jit
    def step(state: dict[str, jax.Array], batch: jax.Array) -> dict[str, jax.Array]:
        traced.append(batch.shape)
        return {"sum": state["sum"] + batch.sum()}

    run, state = compiled_before_use(step), {"sum": jnp.zeros(())}
    for batch in (np.ones(3, np.float32), np.ones(5, np.float32), np.full(3, 2.0, np.float32)):
        state = run(state, batch)

    assert traced == [(3,), (5,)]
    assert float(state["sum"]) == 3 + 5 + 6


def test_a_type_of_its_own_is_a_program_of_its_own() -> None:
    run = compiled_before_use(jax.jit(lambda values: values * 2))

    assert run(np.array([1, 2], np.int32)).dtype == np.int32
    assert run(np.array([1, 2], np.float32)).dtype == np.float32


def test_what_tracing_raises_comes_through() -> None:
    def refuse(values: jax.Array) -> jax.Array:
        raise ValueError("rows do not divide")

    with pytest.raises(ValueError, match="rows do not divide"):
        compiled_before_use(jax.jit(refuse))(np.ones(2))


def test_donated_arguments_stay_donated() -> None:
    run, state = compiled_before_use(jax.jit(lambda values: values + 1, donate_argnums=0)), jnp.ones(8)
    run(state)

    assert state.is_deleted()


def test_returning_memory_harms_nothing() -> None:
    kept = np.arange(1_000_000)
    return_free_memory()

    assert kept.sum() == 499_999_500_000
