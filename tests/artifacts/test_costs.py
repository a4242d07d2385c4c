"""Costs: the attempts that did not finish are in the sum, and a price nobody gave is not taken for zero."""

from __future__ import annotations

import os

import pytest

from artifacts.build import Build, Stage
from artifacts.checkpoints import CheckpointStore
from artifacts.costs import (
    StageCost,
    device_cost,
    interruption_cost,
    seconds_of_last_attempt,
    stage_costs,
    total,
)
from artifacts.records import ArtifactError
from artifacts.repository import record_name
from artifacts.store import open_store


class Killed(Exception):
    """An attempt that ends here."""


@pytest.fixture
def checkpoints(tmp_path):
    return CheckpointStore(open_store("file:store", tmp_path), "0" * 64)


def at(checkpoints, name: str, seconds: float) -> None:
    os.utime(checkpoints.store.root / f"{checkpoints.prefix}{name}", (seconds, seconds))


def test_the_first_attempt_has_nothing_before_it(checkpoints):
    assert seconds_of_last_attempt(checkpoints) == {}
    checkpoints.begin_attempt({})
    assert interruption_cost(checkpoints) == {}


def test_an_attempt_lived_until_the_last_object_that_it_left(checkpoints, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "weights").write_text("w")
    checkpoints.begin_attempt({})
    at(checkpoints, "attempts/1.json", 1000.0)
    entry = checkpoints.save(1, tmp_path / "state", {}).files[0]
    at(checkpoints, f"blobs/{entry.sha256}", 1030.0)
    at(checkpoints, "manifests/1.json", 1031.5)
    assert seconds_of_last_attempt(checkpoints) == {"seconds_before": 31.5}


def test_an_attempt_that_left_nothing_counts_zero_and_not_the_pause_after_it(checkpoints, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "weights").write_text("w")
    checkpoints.begin_attempt({})
    checkpoints.save(1, tmp_path / "state", {})
    checkpoints.begin_attempt({})
    for name in ("manifests/1.json", f"blobs/{checkpoints.latest().files[0].sha256}", "attempts/1.json"):
        at(checkpoints, name, 1000.0)
    at(checkpoints, "attempts/2.json", 5000.0)
    assert seconds_of_last_attempt(checkpoints) == {"seconds_before": 0.0}


def test_a_chain_of_interruptions_adds_up_in_the_provenance(workshop, tmp_path):
    stage = Stage("data", "tokens", "nano/data", "steps.data", {})
    lives = [40.0, 0.0, 20.0]

    def killed(making: Build) -> None:
        """Leaves a checkpoint `lives[...]` seconds after its start, unless that is zero."""
        attempt = making.interruptions + 1
        at(making.checkpoints, f"attempts/{attempt}.json", 1000.0 * attempt)
        if life := lives[attempt - 1]:
            (making.output / "state").write_text(str(attempt))
            for entry in making.checkpoints.save(attempt, making.output, {}).files:
                at(making.checkpoints, f"blobs/{entry.sha256}", 1000.0 * attempt)
            at(making.checkpoints, f"manifests/{attempt}-{attempt}.json", 1000.0 * attempt + life)
        raise Killed

    def finishes(making: Build) -> None:
        making.cost.update(interruption_cost(making.checkpoints))
        (making.output / "file").write_text("done")

    for _ in lives:
        with pytest.raises(Killed):
            workshop.build(stage, killed)
    (cost,) = stage_costs(workshop.repository, workshop.build(stage, finishes).record_digest)
    assert cost.interruptions == 3
    assert cost.amounts["interrupted_seconds"] == sum(lives)


def test_devices_cost_their_time_and_money_only_at_a_known_price():
    assert device_cost(10.0, 4, None) == {"devices": 4, "device_seconds": 40.0}
    assert device_cost(900.0, 4, 2.5) == {"devices": 4, "device_seconds": 3600.0, "usd": 2.5}


def test_the_sum_runs_over_everything_below_and_each_record_counts_once(workshop):
    data = workshop.data()

    def produce(making: Build) -> None:
        making.cost.update(usd=0.5, tokens_in=10, peak_rss_bytes=1_000)
        (making.output / "file").write_text(making.stage.name)

    def stage(name: str, **inputs: str) -> str:
        return workshop.build(Stage("train", "model", name, "steps.train", {"n": name}, inputs), produce).record_digest

    left, right = stage("left", data=data.record_digest), stage("right", data=data.record_digest)
    costs = stage_costs(workshop.repository, stage("top", left=left, right=right))
    assert sorted(cost.name for cost in costs) == ["left", "nano/data", "right", "top"]
    sums = total(costs)
    assert (sums["usd"], sums["tokens_in"]) == (1.5, 30)
    assert "peak_rss_bytes" not in sums
    assert sums["wall_seconds"] == pytest.approx(sum(cost.amounts["wall_seconds"] for cost in costs))


def test_a_sum_with_a_hole_is_refused(workshop):
    data = workshop.data()
    model = workshop.train(data)
    workshop.object(record_name(data.record_digest)).unlink()
    with pytest.raises(ArtifactError, match="input 'tokens' of train"):
        stage_costs(workshop.repository, model.record_digest)


@pytest.mark.parametrize(
    ("amounts", "unpriced"),
    [
        ({"wall_seconds": 5.0}, False),
        ({"device_seconds": 5.0}, True),
        ({"requests": 3}, True),
        ({"device_seconds": 5.0, "usd": 0.0}, False),
        ({"device_seconds": 0.0}, False),
    ],
)
def test_what_is_paid_for_without_a_price_says_so(amounts, unpriced):
    cost = StageCost("s", "n", "0" * 64, "", 0, 1, amounts)
    assert cost.is_unpriced == unpriced
    assert ("usd" in total([cost])) == ("usd" in amounts)
