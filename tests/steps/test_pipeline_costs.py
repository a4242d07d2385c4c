"""Cost of a stage: endpoint answers are counted and priced, devices held are billed with the attempts that failed."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from artifacts.build import Build, RunInfo, Stage
from artifacts.repository import Repository
from artifacts.store import open_store
from nanocode.config import ComputeConfig, ConstitutionConfig, EndpointConfig
from nanocode.constitution.ledger import Ledger
from steps.pipeline.run import ROOT, Run
from steps.pipeline.spend import Price, answers_in, endpoint_cost, prices


def answer(model: str, tokens_in: int, tokens_out: int) -> str:
    return json.dumps({"model": model, "usage": {"prompt_tokens": tokens_in, "completion_tokens": tokens_out}})


def priced(model: str, price_in: float | None, price_out: float | None) -> EndpointConfig:
    prices = {"usd_per_million_input_tokens": price_in, "usd_per_million_output_tokens": price_out}
    return EndpointConfig(model=model, base_url="http://127.0.0.1:9", **prices)


def constitution(*endpoints: EndpointConfig) -> ConstitutionConfig:
    generator, critic, reviser = endpoints
    return ConstitutionConfig(sft_tasks=1, preference_tasks=1, generator=generator, critic=critic, reviser=reviser)


def test_every_answer_is_priced_by_the_model_that_gave_it_dates_in_its_name_aside():
    known = {"big": Price(3.0, 15.0), "big-mini": Price(1.0, 2.0)}
    cost = endpoint_cost([answer("big-2026-01-02", 1000, 100), answer("big-mini-2026", 500, 10)], known)
    assert cost == {"requests": 2, "tokens_in": 1500, "tokens_out": 110, "usd": pytest.approx(0.0045 + 0.00052)}


@pytest.mark.parametrize("unknown", [answer("other", 10, 1), json.dumps({"model": "big"})])
def test_one_answer_without_a_price_or_a_count_leaves_the_sum_out(unknown):
    assert "usd" not in endpoint_cost([answer("big", 10, 1), unknown], {"big": Price(3.0, 15.0)})


def test_a_price_needs_both_sides_and_one_seller():
    both, half = priced("a", 1.0, 2.0), priced("b", 1.0, None)
    assert prices(constitution(both, half, both)) == {"a": Price(1.0, 2.0)}
    assert prices(constitution(both, half, priced("a", 9.0, 9.0))) == {}


def test_the_embedded_teacher_costs_nothing_unless_its_name_is_sold_elsewhere():
    embedded = EndpointConfig()
    assert prices(constitution(embedded, embedded, embedded)) == {embedded.model: Price(0.0, 0.0)}
    assert prices(constitution(embedded, embedded, priced(embedded.model, 1.0, 2.0))) == {}


def test_all_ledgers_of_a_folder_are_read(tmp_path):
    for name in ("sft-0-of-2", "sft-1-of-2"):
        with Ledger(tmp_path / f"{name}.jsonl") as ledger:
            ledger.put(name, answer(name, 1, 1))
    assert [json.loads(raw)["model"] for raw in answers_in(tmp_path)] == ["sft-0-of-2", "sft-1-of-2"]


def test_prices_and_device_hours_never_enter_a_cache_key():
    assert priced("a", 1.0, 2.0).identity() == priced("a", None, None).identity()
    assert ComputeConfig(usd_per_device_hour=2.0).identity() == ComputeConfig().identity()


class Killed(Exception):
    """An attempt that ends here."""


def test_devices_are_billed_for_the_attempts_that_failed_too(tmp_path, monkeypatch):
    repository = Repository(open_store("file:store", tmp_path))
    config = SimpleNamespace(compute=ComputeConfig(usd_per_device_hour=3600.0))
    run = Run(config, repository, RunInfo("F", "1", "u"), root=ROOT, work=tmp_path / "work", say=lambda line: None)
    stage = Stage("import_file", "k", "n", "steps.import_file", {})

    def killed(making: Build) -> None:
        raise Killed

    def finishes(making: Build) -> None:
        making.cost["devices"] = 4
        (making.output / "file").write_text("done")

    with pytest.raises(Killed):
        run.make(stage, killed)
    monkeypatch.setattr("artifacts.build.seconds_of_last_attempt", lambda checkpoints: {"seconds_before": 10.0})
    (made,) = repository.provenances(run.make(stage, finishes))
    assert made.cost["interrupted_seconds"] == 10.0
    assert 40.0 <= made.cost["device_seconds"] < 60.0
    assert made.cost["usd"] == pytest.approx(made.cost["device_seconds"])
    assert made.cost["peak_rss_bytes"] > 0
