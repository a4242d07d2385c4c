from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from artifacts.fingerprint import code_fingerprint
from nanocode.config import ComputeConfig, Config, ConfigError, ConstitutionConfig, EndpointConfig, Section
from nanocode.config_file import load, parse, validate

ROOT = Path(__file__).parents[1]
CONFIGS = sorted((ROOT / "configs").glob("*.toml"))

SMALLEST = """
name = "small"
[data]
[[data.sources]]
name = "docs"
kind = "python_docs"
[model]
depth = 2
[constitution]
sft_tasks = 1
preference_tasks = 1
"""


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_in_the_repository_loads(path: Path) -> None:
    config = load(path)
    assert config.name
    given = tomllib.loads(path.read_text())
    assert config.model.depth == given["model"]["depth"]
    assert len(config.data.sources) == len(given["data"]["sources"])


def test_nano_is_there() -> None:
    assert "nano" in [path.stem for path in CONFIGS]


@pytest.mark.parametrize(
    ("override", "key", "nearest"),
    [
        ("modle.depth=3", "'modle'", "did you mean 'model'?"),
        ("model.deph=3", "'model.deph'", "did you mean 'depth'?"),
        ("pretrain.optimizer.muon_Ir=1.0", "'pretrain.optimizer.muon_Ir'", "did you mean 'muon_lr'?"),
        ("constitution.critic.modell='x'", "'constitution.critic.modell'", "did you mean 'model'?"),
        ("evaluation.task=3", "'evaluation.task'", "did you mean 'tasks'?"),
        ("compute.zzzzzz=3", "'compute.zzzzzz'", "takes: checkpoint_every_seconds"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_valid_one(override: str, key: str, nearest: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(SMALLEST, [override], where="small.toml")
    assert f"small.toml: unknown key {key}: " in str(caught.value)
    assert nearest in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_key_of_a_source_is_named_by_its_place() -> None:
    text = SMALLEST.replace('kind = "python_docs"', 'kind = "python_docs"\nwieght = 2.0')
    with pytest.raises(ConfigError, match=r"unknown key 'data.sources.0.wieght': did you mean 'weight'\?"):
        parse(text)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.depth=0", "model.depth: .*greater than or equal to 1.*got 0"),
        ("model.depth=true_", "model.depth: .*got 'true_'"),
        ("name='No Spaces'", "name: .*got 'No Spaces'"),
        ("dpo.beta=0.0", "dpo.beta: .*greater than 0"),
        ("model.dtype='float16'", "model.dtype: .*'float32' or 'bfloat16'"),
        ("tokenizer.vocab_size=267", "tokenizer.vocab_size: .*268"),
        ("data.validation_fraction=0.5", "data.validation_fraction"),
    ],
)
def test_a_value_out_of_range_is_named_with_what_was_given(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(SMALLEST, [override])


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ConfigError, match=r"model\.depth is missing"):
        parse(SMALLEST.replace("depth = 2", ""))


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(ConfigError, match=r"model\.depth.*; unknown key 'sft\.stepz'"):
        parse(SMALLEST, ["model.depth=0", "sft.stepz=3"])


def test_an_unknown_kind_of_source_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"data\.sources\.0.*'python_docs', 'python_stdlib', 'files', 'hub'"):
        parse(SMALLEST.replace('"python_docs"', '"python_doc"'))


def test_two_sources_of_one_name_are_refused() -> None:
    text = SMALLEST.replace("[model]", '[[data.sources]]\nname = "docs"\nkind = "python_stdlib"\n[model]')
    with pytest.raises(ConfigError, match=r"two data\.sources share a name"):
        parse(text)


def test_a_hub_source_must_pin_its_revision() -> None:
    values = tomllib.loads(SMALLEST)
    values["data"]["sources"] = [
        {"name": "web", "kind": "hub", "register_as": "text", "dataset": "a/b", "licence": "x"}
    ]
    with pytest.raises(ConfigError, match=r"data\.sources\.0\.revision is missing"):
        validate(values)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config file at .*absent\.toml"):
        load(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="cannot read"):
        load(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"cannot read .*bytes\.toml"):
        load(tmp_path / "bytes.toml")
    (tmp_path / "broken.toml").write_text("name = ")
    with pytest.raises(ConfigError, match=r"broken\.toml is not valid TOML"):
        load(tmp_path / "broken.toml")


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("model.depth=7", lambda config: config.model.depth == 7),
        ("seed = 9", lambda config: config.seed == 9),
        ("name='other'", lambda config: config.name == "other"),
        ("name=bare-word", lambda config: config.name == "bare-word"),
        ("dpo.beta=0.25", lambda config: config.dpo.beta == 0.25),
        ("pretrain.optimizer.muon_lr=0.5", lambda config: config.pretrain.optimizer.muon_lr == 0.5),
        ("model.tie_embeddings=true", lambda config: config.model.tie_embeddings is True),
        ("store.url=s3://bucket/a=b", lambda config: config.store.url == "s3://bucket/a=b"),
        ("data.sources=[{name='own', kind='python_stdlib'}]", lambda config: config.data.sources[0].name == "own"),
    ],
)
def test_an_override_sets_one_value(override: str, read: Any) -> None:
    assert read(parse(SMALLEST, [override]))


def test_the_last_override_wins_and_the_rest_stays() -> None:
    config = parse(SMALLEST, ["model.depth=3", "model.width=64", "model.depth=5"])
    assert (config.model.depth, config.model.width) == (5, 64)
    assert config.data == parse(SMALLEST).data


@pytest.mark.parametrize("override", ["model.depth", "=3", "", "  = 3"])
def test_an_override_without_key_or_value_is_refused(override: str) -> None:
    with pytest.raises(ConfigError, match="must look like section"):
        parse(SMALLEST, [override])


def test_an_override_below_a_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="depth is not a section"):
        parse(SMALLEST, ["model.depth.more=3"])


def test_sections_cannot_be_changed() -> None:
    config = parse(SMALLEST)
    with pytest.raises(ValueError, match="frozen"):
        config.model.depth = 3  # type: ignore[misc]


def test_how_a_stage_runs_is_not_its_identity() -> None:
    patient = EndpointConfig(timeout_seconds=600, max_attempts=9)
    assert patient.identity() == EndpointConfig().identity()
    assert patient != EndpointConfig()
    assert EndpointConfig(max_tokens=9).identity() != EndpointConfig().identity()


def test_identity_leaves_out_what_is_marked_in_nested_sections_too() -> None:
    here = EndpointConfig(base_url="http://127.0.0.1:1/v1", api_key_env="KEY", timeout_seconds=1, max_attempts=9)
    apart = ConstitutionConfig(sft_tasks=1, preference_tasks=1, critic=here, concurrency=1, rollout_shards=7)
    plain = ConstitutionConfig(sft_tasks=1, preference_tasks=1, critic=EndpointConfig())
    assert apart.identity() == plain.identity()
    renamed = plain.model_copy(update={"critic": EndpointConfig(model="other")})
    assert renamed.identity() != plain.identity()


def marked_fields(section: type[Section]) -> set[str]:
    return {
        name
        for name, info in section.model_fields.items()
        if isinstance(info.json_schema_extra, dict) and info.json_schema_extra.get("identity") is False
    }


def test_identity_holds_every_unmarked_field_and_no_marked_one() -> None:
    config = parse(SMALLEST)
    for section in (config.data, config.model, config.pretrain, config.sft, config.dpo, config.constitution.critic):
        assert set(section.identity()) == set(type(section).model_fields) - marked_fields(type(section))
    prices = {"usd_per_million_input_tokens", "usd_per_million_output_tokens"}
    assert marked_fields(EndpointConfig) == {"base_url", "api_key_env", "timeout_seconds", "max_attempts"} | prices


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_identity_is_plain_json(path: Path) -> None:
    config = load(path)
    for name in Config.model_fields:
        section = getattr(config, name)
        if isinstance(section, Section):
            assert json.loads(json.dumps(section.identity(), allow_nan=False)) == section.identity()


def test_an_embedded_default_is_not_shared_between_endpoints() -> None:
    constitution = parse(SMALLEST).constitution
    endpoints = (constitution.generator, constitution.critic, constitution.reviser)
    assert [endpoint.temperature for endpoint in endpoints] == [0.7, 0.0, 0.2]


def test_the_grace_stays_below_what_a_spot_machine_gives() -> None:
    assert 0 < ComputeConfig().grace_seconds < 30


@pytest.mark.parametrize("key", ["files", "hub", "python_docs"])
def test_an_unknown_key_named_like_a_kind_of_source_is_named(key: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown key '{key}'"):
        parse(SMALLEST, [f"{key}.x=1"])
    with pytest.raises(ConfigError, match=f"unknown key 'data.{key}'"):
        parse(SMALLEST, [f"data.{key}=1"])


@pytest.mark.parametrize(
    "override",
    [
        "pretrain.optimizer.muon_lr=nan",
        "pretrain.optimizer.muon_lr=inf",
        "dpo.beta=inf",
        "model.rope_base=nan",
        "model.softcap=0.0",
        "model.mlp_ratio=0",
        "model.qk_scale=nan",
    ],
)
def test_numbers_that_cannot_train_are_refused(override: str) -> None:
    with pytest.raises(ConfigError, match=override.partition("=")[0]):
        parse(SMALLEST, [override])


@pytest.mark.parametrize(
    ("step", "sections"),
    [
        ("steps.shard_data", {"data"}),
        ("steps.fit_tokenizer", {"data", "tokenizer"}),
        ("steps.generate_rollouts", {"constitution", "data"}),
        ("steps.pretrain", {"compute", "model", "pretrain", "training"}),
        ("steps.sft", {"compute", "model", "pretrain", "sft", "training"}),
    ],
)
def test_an_edit_to_a_section_makes_only_those_stages_again_that_read_it(step: str, sections: set[str]) -> None:
    """Nobody imports the whole config: a field of [evaluation] retrains nothing."""
    modules = code_fingerprint(step, root=ROOT).modules
    read = {name.removeprefix("nanocode.config.") for name in modules if name.startswith("nanocode.config")}
    assert "section" in read and read - {"section"} <= sections
