"""What a training stage gives its caller: the same model and the same metrics, interrupted, watched or not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from nanocode.config import ComputeConfig, GuardConfig, ModelConfig
from nanocode.model.gpt import GPT
from nanocode.stopping import Interrupted
from nanocode.training import stage
from nanocode.training.compiled import compiled_before_use
from nanocode.training.guard import TrainingError
from nanocode.training.journal import Journal, Report
from nanocode.training.losses import Batch, language_model_loss
from nanocode.training.probes import Probe
from nanocode.training.stage import Running, Trained, metrics_of, run_training
from nanocode.training.step import make_step

CONFIG = ModelConfig(depth=1, width=32, heads=2, context_tokens=16, tie_embeddings=True, dtype="float32")
STEPS = 8


def batch(index: int) -> Batch:
    ids = np.random.default_rng(index).integers(0, 64, (2, 17)).astype(np.int32)
    return Batch(ids, np.ones(ids.shape, np.float32), np.zeros_like(ids))


@pytest.fixture(scope="module", autouse=True)
def compiled_once() -> Iterator[None]:
    """All runs here have one model and one optimizer: they share the compiled step."""
    with pytest.MonkeyPatch.context() as patch:
        made: list[Any] = []

        def shared(*given: Any) -> Any:
            made.append(made[0] if made else compiled_before_use(make_step(*given)))
            return made[-1]

        patch.setattr(stage, "make_step", shared)
        patch.setattr(stage, "compiled_before_use", lambda step: step)
        yield


def run(running: Running, **named: Any) -> Trained:
    return run_training(
        GPT(CONFIG, 64, nnx.Rngs(0)),
        lambda own, rows: (language_model_loss(own, rows), {}),
        optax.adam(1e-2),
        named.pop("batch", batch),
        STEPS,
        tokens_per_step=32,
        label="sft",
        running=running,
        rate_factor=lambda step: 1.0 - step / STEPS,
        **named,
    )


def weights(trained: Trained) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(nnx.state(trained.model, nnx.Param))]


def timeless(metrics: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metrics.items() if name != "timing"}


@pytest.fixture(scope="module")
def plain() -> Trained:
    return run(Running())


def test_an_interrupted_run_has_the_weights_and_the_metrics_of_one_that_was_not(
    plain: Trained, store: Any, tmp_path: Path
) -> None:
    asked: list[int] = []

    def stop_at(count: int) -> Callable[[], bool]:
        return lambda: asked.append(1) or len(asked) >= count

    for count in (3, 5):
        with pytest.raises(Interrupted):
            run(Running(store=store, stop_requested=stop_at(count), workspace=tmp_path / "logs"))
    trained = run(Running(store=store, workspace=tmp_path / "logs"))
    assert weights(trained) == weights(plain)
    assert timeless(trained.metrics) == timeless(plain.metrics)
    assert [point["step"] for point in trained.metrics["curve"]] == list(range(1, STEPS + 1))
    assert trained.metrics["curve"][2]["rate"] == 0.75
    for number, each in enumerate((trained, plain)):
        (tmp_path / str(number)).mkdir()
        each.write_metrics(tmp_path / str(number))
    assert (tmp_path / "0/metrics.jsonl").read_bytes() == (tmp_path / "1/metrics.jsonl").read_bytes()
    live = [json.loads(line) for line in (tmp_path / "logs/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in live] == list(range(1, STEPS + 1))


def test_looking_at_a_model_changes_nothing(plain: Trained, tmp_path: Path) -> None:
    said: list[str] = []
    looked: list[GPT] = []

    def look(model: GPT) -> dict[str, Any]:
        looked.append(model)
        return {"bpb_docs": 2.5, "samples": [{"prompt": "def "}]}

    trained = run(
        Running(said.append, workspace=tmp_path, compute=ComputeConfig(log_every_seconds=0, measure_ceiling=True)),
        probes=[Probe(3, look)],
    )
    assert weights(trained) == weights(plain)
    assert trained.metrics["curve"] == plain.metrics["curve"]
    assert trained.metrics["observations"] == [
        {"step": step, "bpb_docs": 2.5, "samples": [{"prompt": "def "}]} for step in (3, 6)
    ]
    assert len(looked) == 2
    assert "sft step 3: bpb_docs 2.5000" in said
    assert "sft step 3: samples {'prompt': 'def '}" in said
    assert any(line.startswith(f"sft step {STEPS}/{STEPS} | loss ") and "speed" in line for line in said)


def test_a_profile_can_be_asked_for(tmp_path: Path) -> None:
    said: list[str] = []
    run(Running(said.append, workspace=tmp_path, compute=ComputeConfig(profile_steps="2:3")))
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))
    assert f"profile of steps 2 to 3: {tmp_path / 'profile'}" in said


def test_a_batch_that_spoils_training_is_left_out_and_recorded(plain: Trained) -> None:
    """A mask full of infinities: the loss of that batch is no number, and neither are the weights after it."""

    def spoilt(index: int) -> Batch:
        return batch(index)._replace(mask=np.full((2, 17), np.inf, np.float32)) if index == 4 else batch(index)

    trained = run(Running(), batch=spoilt)
    (event,) = trained.metrics["returns"]
    assert (event["step"], event["skipped"]) == (5, (3, 4))
    assert all(np.isfinite(np.frombuffer(leaf, np.float32)).all() for leaf in weights(trained))
    assert trained.metrics["curve"][:3] == plain.metrics["curve"][:3]


def test_the_curve_of_a_long_run_is_thinned_and_keeps_its_end() -> None:
    journal = Journal(2_501, [Report(step, 2_501, 0.5, {"loss": 1.0}) for step in range(1, 2_502)])
    metrics = metrics_of(journal, 100, None)
    assert len(metrics["curve"]) <= 1_000
    assert metrics["curve"][-1] == {"step": 2_501, "loss": 1.0}
    assert metrics["timing"][0] == {"step": 3, "tokens_per_second": 200.0}


def test_a_stage_can_be_stopped_after_its_loop() -> None:
    Running().pause("after training")
    with pytest.raises(Interrupted, match=r"^stopped after training; run the same command to continue$"):
        Running(stop_requested=lambda: True).pause("after training")


def test_the_config_decides_how_often_a_run_returns() -> None:
    nothing = np.full((2, 17), np.inf, np.float32)
    with pytest.raises(TrainingError, match="at step 1: lower the learning rates"):
        run(
            Running(),
            batch=lambda index: batch(index)._replace(mask=nothing),
            guard=GuardConfig(max_returns=0),
        )
