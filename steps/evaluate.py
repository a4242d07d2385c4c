"""Stage: evaluation of one model: bits per byte, held-out tasks greedy and sampled, SOUL adherence, preferences.

The base, SFT and DPO models all pass through this one function with the same tasks and the same seeds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from nanocode.config import DpoConfig, EvaluationConfig
from nanocode.constitution.soul import Soul
from nanocode.conversation import to_json
from nanocode.data.shards import read_texts
from nanocode.evaluation.adherence import episode_adherence
from nanocode.evaluation.agent_tasks import Episode, run_tasks, summarise
from nanocode.evaluation.bits_per_byte import bits_per_byte
from nanocode.evaluation.core.scoring import ModelScorer
from nanocode.evaluation.funnel import funnel, passage
from nanocode.evaluation.human_eval.engine import EngineCompleter
from nanocode.evaluation.human_eval.figures import Way
from nanocode.evaluation.intervals import Rate
from nanocode.evaluation.references import Reference, references
from nanocode.inference.engine import Engine
from nanocode.model.gpt import GPT
from nanocode.model.weights import load_model
from nanocode.tasks.registry import sample_tasks
from nanocode.tokenizer import Tokenizer
from nanocode.training.preference import score
from nanocode.training.stage import Running
from steps import benchmarks
from steps.dpo import read_pairs, read_reference


@dataclass(frozen=True)
class Inputs:
    """`shards` maps a register ("text", "code") to the folders of its sources; `pairs`, `reference` and `benchmarks`
    (downloaded ones, by name) may be left out. `way`: how the model is asked for programs.
    """

    model: Path
    tokenizer: Path
    soul: Path
    shards: Mapping[str, Sequence[Path]]
    output: Path
    pairs: Sequence[Path] = field(default_factory=tuple)
    reference: Path | None = None
    benchmarks: Mapping[str, Path] = field(default_factory=dict)
    way: Way = "completion"


def run(config: EvaluationConfig, dpo: DpoConfig, inputs: Inputs, running: Running) -> dict[str, Any]:
    """Write ``metrics.json`` (returned too) and ``episodes.jsonl``: every conversation, with its verdict.

    `dpo` gives the beta under which preference margins are stated. Every rate carries n and its 95 % Wilson interval.
    """
    tokenizer = Tokenizer.load(inputs.tokenizer / "tokenizer.json")
    model, soul = load_model(inputs.model), Soul.load(inputs.soul / "SOUL.md")
    metrics: dict[str, Any] = {}
    for register, folders in sorted(inputs.shards.items()):
        texts = [text for folder in folders for text in read_texts(folder, "validation")]
        metrics[f"bpb_{register}"] = bits_per_byte(model, tokenizer, texts, config.held_out_bytes)
        running.say(f"evaluate: {metrics[f'bpb_{register}']:.3f} bits a byte on held-out {register}")
    engine = Engine(model, tokenizer)
    tasks = sample_tasks("eval", config.tasks, config.seed)
    expert = references(tasks)
    with (inputs.output / "episodes.jsonl").open("w", encoding="utf-8") as file:
        for name, temperature in (("greedy", 0.0), ("sampled", config.sampled_temperature)):
            episodes = run_tasks(
                engine,
                tasks,
                temperature=temperature,
                max_turns=config.max_turns,
                max_new_tokens=config.max_new_tokens,
                seed=config.seed,
            )
            adherence, broken = episode_adherence(episodes, soul)
            metrics[name] = summarise(episodes).to_json()
            metrics[name] |= {"temperature": temperature, "soul": adherence.to_json(), "principles_broken": broken}
            metrics[name]["funnel"] = funnel(episodes, expert).to_json()
            metrics[name]["solved"] = {episode.task.id: episode.verdict.success for episode in episodes}
            running.say(f"evaluate: {name}: tasks solved {summarise(episodes).success}, SOUL kept {adherence}")
            file.writelines(_episode_line(name, episode, expert[episode.task.id]) for episode in episodes)
    if "core" in inputs.benchmarks:
        scorer = ModelScorer(model, tokenizer)
        metrics["core"] = benchmarks.core(config, inputs.benchmarks["core"], scorer, running, inputs.output)
    if "human_eval" in inputs.benchmarks:
        completer = EngineCompleter(engine, inputs.way)
        folder = inputs.benchmarks["human_eval"]
        metrics["human_eval"] = benchmarks.human_eval(config, folder, completer, running, inputs.output)
    if inputs.pairs and inputs.reference is not None:
        metrics["preference"] = _preference(model, tokenizer, dpo.beta, inputs, inputs.reference)
    text = json.dumps(metrics, indent=2, sort_keys=True)
    (inputs.output / "metrics.json").write_text(text + "\n", encoding="utf-8")
    return metrics


def _preference(model: GPT, tokenizer: Tokenizer, beta: float, inputs: Inputs, reference: Path) -> dict[str, Any]:
    """Accuracy and margin against the reference on the held-out pairs; a tie counts as no win."""
    pairs = read_pairs(inputs.pairs, tokenizer, "held_out")
    policy, frozen = score(model, pairs, tokenizer.pad), read_reference(reference)
    shifts = [
        (policy[pair.id].chosen - frozen[pair.id].chosen, policy[pair.id].rejected - frozen[pair.id].rejected)
        for pair in pairs
    ]
    margins = [beta * (chosen - rejected) for chosen, rejected in shifts]
    accuracy = Rate(sum(margin > 0 for margin in margins), len(margins))
    return {
        "accuracy": accuracy.to_json(),
        "mean_margin": fmean(margins) if margins else 0.0,
        "mean_chosen_shift_nats": fmean(chosen for chosen, _ in shifts) if shifts else 0.0,
    }


def _episode_line(decoding: str, episode: Episode, reference: Reference) -> str:
    row = {
        "decoding": decoding,
        "task": episode.task.id,
        "family": episode.task.family,
        "held_out_variant": episode.task.held_out_variant,
        "success": episode.verdict.success,
        "reasons": list(episode.verdict.reasons),
        "stop_reason": episode.stop_reason,
        "calls": passage(episode, reference).to_json(),
        "messages": to_json(episode.conversation),
    }
    return json.dumps(row, ensure_ascii=False) + "\n"
