"""What DPO cost: in the release's figures, as a warning past the gate, and as a stop where the config says so."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows import cards
from nanocode.config import EvaluationConfig
from nanocode.evaluation.intervals import Rate
from nanocode.evaluation.paired import paired
from steps import release as stage
from steps.pipeline import releasing
from steps.pipeline.retention import RetentionLost, retention_fault


def pairs(n: int, lost: int, won: int = 0) -> dict[str, Any]:
    """Greedy retention on n tasks."""
    before = {f"t{place:03}": place >= won for place in range(n)}
    after = {task: place < won or place >= won + lost for place, task in enumerate(before)}
    return {"greedy": paired(before, after).to_json()}


@pytest.mark.parametrize(
    ("n", "lost", "won", "gate", "warned"),
    [
        (100, 5, 0, 5.0, False),
        (100, 6, 0, 5.0, True),
        (100, 8, 3, 5.0, False),
        (100, 6, 0, 6.0, False),
        (100, 0, 4, 0.0, False),
        (100, 1, 0, 0.0, True),
    ],
)
def test_the_gate_is_in_points_of_greedy_success(n: int, lost: int, won: int, gate: float, warned: bool) -> None:
    fault = retention_fault(pairs(n, lost, won), EvaluationConfig(retention_gate_points=gate))
    assert (fault is not None) == warned


def test_the_warning_says_how_much_on_how_many_tasks_and_what_to_do() -> None:
    fault = str(retention_fault(pairs(100, 9), EvaluationConfig()))
    assert "-9.0 points (" in fault and "n=100" in fault and "0 won, 9 lost" in fault
    assert "retention_gate_points is 5" in fault and "raise dpo.nll_weight" in fault


def test_without_figures_there_is_nothing_to_warn_of() -> None:
    assert retention_fault({}, EvaluationConfig()) is None
    assert retention_fault({"sampled": pairs(100, 50)["greedy"]}, EvaluationConfig()) is None


def test_the_gate_is_no_part_of_an_evaluations_identity() -> None:
    strict = EvaluationConfig(retention_gate_points=0.5, retention_gate_fails=True)
    assert strict.identity() == EvaluationConfig().identity()


def run_with(retention: dict[str, Any], monkeypatch: pytest.MonkeyPatch, **gate: Any) -> Any:
    """A run whose release record has these figures; what is published is returned as it comes."""
    made = SimpleNamespace(metrics={"retention": retention})
    published: list[dict[str, Any]] = []
    monkeypatch.setattr(releasing, "lineage_peak", lambda repository, record: 1)
    monkeypatch.setattr(releasing, "reused", lambda repository, records, root: [])
    monkeypatch.setattr(
        releasing, "publish", lambda repository, name, record, figures, created: published.append(figures)
    )
    kept = SimpleNamespace(name="nano", version=1, record="r", metrics={})
    monkeypatch.setattr(releasing, "resolve", lambda repository, name: kept)
    config = SimpleNamespace(name="nano", evaluation=EvaluationConfig(**gate))
    repository = SimpleNamespace(provenances=lambda record: [made])
    return SimpleNamespace(config=config, repository=repository, root=Path(), published=published)


def test_past_the_gate_the_release_goes_out_with_the_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(pairs(100, 9), monkeypatch)
    releasing.release(run, "r", 1.0)
    assert "-9.0 points" in run.published[0]["retention_warning"]
    kept = run_with(pairs(100, 2), monkeypatch)
    releasing.release(kept, "r", 1.0)
    assert "retention_warning" not in kept.published[0]


def test_where_the_config_says_so_there_is_no_release_past_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(pairs(100, 9), monkeypatch, retention_gate_fails=True)
    with pytest.raises(RetentionLost, match=r"-9\.0 points"):
        releasing.release(run, "r", 1.0)
    assert run.published == []


def evaluation(**solved: bool) -> dict[str, Any]:
    rate = Rate(sum(solved.values()), len(solved)).to_json()
    figures = {"valid_calls": rate, "success": rate, "soul": rate, "by_family": {"edit": rate}, "solved": solved}
    return {"greedy": figures, "sampled": figures, "preference": {"accuracy": rate, "mean_margin": 1.0}}


def test_the_release_holds_the_retention_of_both_decodings() -> None:
    evaluations = {"base": evaluation(a=False, b=False), "sft": evaluation(a=True, b=True)}
    evaluations["dpo"] = evaluation(a=True, b=False)
    report = {"adherence_stock": {"rate": 0.0}, "adherence_soul": {"rate": 1.0}}
    found = stage.summary(evaluations, report, 0.5)["retention"]
    assert set(found) == {"greedy", "sampled"}
    assert (found["greedy"]["losses"], found["greedy"]["difference"], found["greedy"]["n"]) == (["b"], -0.5, 2)


def test_the_card_and_the_last_words_show_it() -> None:
    metrics = {"base": evaluation(a=False), "sft": evaluation(a=True), "dpo": evaluation(a=False)}
    repository = SimpleNamespace(provenances=lambda record: [SimpleNamespace(metrics=metrics[record])])
    run = SimpleNamespace(repository=repository, config=SimpleNamespace(evaluation=EvaluationConfig()))
    card: list[Any] = []
    cards.evaluation(card, run, {name: name for name in metrics})
    shown = [part._text for part in card if hasattr(part, "_text")]
    assert any(text.startswith("# Retention") for text in shown)
    assert any("**Warning**" in text and "-100.0 points" in text for text in shown)
    plain = dict.fromkeys(("bpb_text", "bpb_code", "valid_call_rate", "task_success", "task_success_sampled"), 0.5)
    plain |= {"soul_greedy": 0.5, "soul_sampled": 0.5, "n_tasks": 1}
    released = {
        "metrics": dict.fromkeys(metrics, plain)
        | {"preference_accuracy": 1.0, "sft_data_soul": 0.5, "wall_seconds": 1.0, "peak_rss_bytes": 1}
        | {"retention": pairs(100, 9), "retention_warning": "much was lost"},
        "name": "nano",
        "version": 1,
        "record": "r" * 64,
    }
    lines = cards.farewell(released, "file:x")
    assert any(line.startswith("DPO, greedy") and "-9.0 points" in line for line in lines)
    assert "warning: much was lost" in lines
