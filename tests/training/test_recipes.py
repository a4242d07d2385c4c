from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from nanocode.config import AdamGroupConfig, OptimizerConfig, PretrainConfig
from nanocode.config_file import load
from nanocode.model.depth import Horizon, horizon
from nanocode.training.recipes import NANOCHAT, NANOCODE, PLAIN, resolve, scaled_by_depth

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
RULES = Horizon(tokens=10, batch_tokens=2**20, steps=1, lr_factor=1.5, muon_weight_decay=0.1)


@pytest.mark.parametrize(("recipe", "settings"), [("plain", PLAIN), ("nanochat", NANOCHAT), ("nanocode", NANOCODE)])
def test_what_a_config_leaves_out_is_the_recipe_s(recipe: str, settings: object) -> None:
    assert resolve(OptimizerConfig.model_validate({"recipe": recipe})) == settings


def test_what_a_config_gives_stands_and_nothing_else_changes() -> None:
    """A zero and a false are given too."""
    config = OptimizerConfig(
        recipe="nanochat",
        muon_equalise=False,
        muon_momentum_warmup_steps=0,
        warmup_steps=7,
        stream_scale=AdamGroupConfig(weight_decay=0.0, batch_scaled=False),
    )
    assert resolve(config) == replace(
        NANOCHAT,
        muon=replace(NANOCHAT.muon, equalise=False, momentum_warmup_steps=0),
        schedule=replace(NANOCHAT.schedule, warmup_steps=7),
        stream_scale=replace(NANOCHAT.stream_scale, weight_decay=0.0, batch_scaled=False),
    )


def test_every_setting_can_be_given() -> None:
    """No field of the settings is out of a config's reach, and no field of a config is read by nobody."""
    settings = asdict(PLAIN)
    groups = [name for name in settings if name not in ("muon", "schedule")]
    reachable = {f"muon_{name}" for name in settings["muon"]} | set(settings["schedule"]) | set(groups) | {"recipe"}
    assert set(OptimizerConfig.model_fields) == reachable
    assert all(set(settings[name]) == set(AdamGroupConfig.model_fields) for name in groups)


@pytest.mark.parametrize(
    ("config", "batch_tokens", "factor", "decay"),
    [
        ({"recipe": "nanochat"}, None, 1.5, 0.1),
        ({"recipe": "nanochat"}, 2**18, 0.75, 0.05),
        ({"recipe": "nanochat", "muon_weight_decay": 0.3}, 2**18, 0.75, 0.3),
        ({"recipe": "nanochat", "muon_weight_decay": 0.0}, None, 1.5, 0.0),
        ({"recipe": "plain"}, None, 1.5, 0.1),
        ({"recipe": "plain"}, 2**18, 1.0, None),
        ({"recipe": "nanocode"}, None, 1.0, None),
        ({"recipe": "nanocode"}, 2**18, 1.0, None),
    ],
)
def test_rates_and_decay_go_with_the_root_of_the_batch_where_the_recipe_says_so(
    config: dict[str, Any], batch_tokens: int | None, factor: float, decay: float | None
) -> None:
    pretrain = PretrainConfig(batch_tokens=batch_tokens, optimizer=OptimizerConfig.model_validate(config))
    scaled, own = scaled_by_depth(pretrain, RULES)
    assert (own, scaled.muon_weight_decay) == (pytest.approx(factor), decay if decay is None else pytest.approx(decay))


@pytest.mark.parametrize(
    ("name", "factor", "decay"), [("d12", 1.0, 0.28), ("d20", 1.4142, 0.1002), ("d24", 1.4142, 0.0597)]
)
def test_the_published_configs_are_nanochats(name: str, factor: float, decay: float) -> None:
    """Its depth table; fine-tuning at 0.8 of its rates, decay of the matrices over."""
    config = load(CONFIGS / f"{name}.toml")
    scaled, own = scaled_by_depth(config.pretrain, horizon(config.model, config.tokenizer.vocab_size))
    assert own == pytest.approx(factor, abs=1e-4)
    assert scaled.muon_weight_decay == pytest.approx(decay, abs=5e-5)
    assert resolve(scaled) == replace(NANOCHAT, muon=replace(NANOCHAT.muon, weight_decay=scaled.muon_weight_decay))
    tuning = resolve(config.sft.optimizer)
    assert (tuning.schedule.lr_scale, tuning.muon.weight_decay) == (0.8, 0.0)


def test_nano_is_plain_but_for_what_it_says_whatever_the_recipes_become() -> None:
    config = load(CONFIGS / "nano.toml")
    additions = {"equalise": True, "rescale": True, "normalise": True}
    for stage, rate, table_rate, added in ((config.pretrain, 0.02, 0.005, {}), (config.sft, 0.03, 0.007, additions)):
        settings = resolve(stage.optimizer)
        assert settings.muon == replace(PLAIN.muon, lr=rate, **added)
        assert settings.embedding == replace(PLAIN.embedding, lr=table_rate, beta1=0.9, epsilon=1e-8)
        assert settings.smear_backout == replace(PLAIN.smear_backout, lr=0.02, beta1=0.9, epsilon=1e-8)
