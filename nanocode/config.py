"""The typed configuration: one TOML file describes a whole run, one section a stage.

Every section is a frozen pydantic model with units in its names. Unknown keys are refused with the nearest valid name.
Fields marked `not_identity` (addresses, concurrency, retry and checkpoint cadence) never decide what comes out of a
stage and so never enter a cache key; `identity` gives the rest.
"""

from __future__ import annotations

import copy
import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

NOT_IDENTITY: dict[str, Any] = {"identity": False}


def not_identity(default: Any = ..., **kwargs: Any) -> Any:
    """A pydantic field that decides how a stage runs, not what it makes: left out of cache keys."""
    return Field(default, json_schema_extra=NOT_IDENTITY, **kwargs)


class ConfigError(ValueError):
    """A configuration that cannot be used. The message is one line: what, where, and the cure."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def identity(self) -> dict[str, Any]:
        """The values that decide this stage's output, as plain JSON data: what enters a cache key."""
        out: dict[str, Any] = {}
        for name, info in type(self).model_fields.items():
            if isinstance(info.json_schema_extra, dict) and info.json_schema_extra.get("identity") is False:
                continue
            out[name] = _plain(getattr(self, name))
        return out


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return value.identity()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


class Source(Section):
    """What every source has. `register` says under which bits-per-byte figure its held-out documents count."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    register_as: Literal["text", "code"]
    weight: float = Field(1.0, gt=0, description="share of the training tokens, relative to the other sources")
    max_bytes: int | None = Field(None, gt=0, description="stop after this many bytes of kept text")


class PythonDocsSource(Source):
    """The running interpreter's documentation: docstrings, `pydoc_data` and, where installed, the reST docs."""

    kind: Literal["python_docs"]
    register_as: Literal["text", "code"] = "text"


class PythonStdlibSource(Source):
    """The running interpreter's standard library, tests left out."""

    kind: Literal["python_stdlib"]
    register_as: Literal["text", "code"] = "code"


class FilesSource(Source):
    """Files by glob (local, s3://, gs://): .parquet and .jsonl hold a document a row, in `text_column`, others one."""

    kind: Literal["files"]
    glob: str
    text_column: str = "text"
    licence: str


class HubSource(Source):
    """A Hugging Face dataset, streamed."""

    kind: Literal["hub"]
    dataset: str
    subset: str | None = None
    split: str = "train"
    text_column: str = "text"
    licence: str
    revision: str = Field(description="commit hash of the dataset: a moving branch cannot be audited")


AnySource = Annotated[
    PythonDocsSource | PythonStdlibSource | FilesSource | HubSource,
    Field(discriminator="kind"),
]


class DataConfig(Section):
    sources: tuple[AnySource, ...] = Field(min_length=1)
    validation_fraction: float = Field(0.05, gt=0, lt=0.5, description="share of documents held out, by a stable hash")
    near_duplicate_threshold: float = Field(
        0.8, gt=0, le=1, description="MinHash Jaccard from which a document is dropped; 1: exact duplicates alone"
    )
    min_document_bytes: int = Field(64, ge=1)
    max_document_bytes: int = Field(1_000_000, ge=1)
    shard_bytes: int = Field(64_000_000, ge=1_000, description="uncompressed text per parquet shard")

    @model_validator(mode="after")
    def _names_are_unique(self) -> DataConfig:
        names = [source.name for source in self.sources]
        if len(set(names)) != len(names):
            raise ValueError("two data.sources share a name")
        return self


class TokenizerConfig(Section):
    vocab_size: int = Field(32_768, ge=268, description="bytes + merges + control tokens")
    max_bytes: int = Field(2_000_000_000, gt=0, description="training text, taken evenly from the sources")
    max_document_bytes: int = Field(10_000, gt=0, description="of one document")
    task_samples: int = Field(0, ge=0, description="SFT-split task conversations added to the training text")


class ModelConfig(Section):
    """`depth` is the one dial; what is left out follows from it by the recipe's rules (`nanocode.model.depth`)."""

    recipe: Literal["nanochat", "nanocode"] = "nanochat"
    depth: int = Field(ge=1)
    width: int | None = Field(None, ge=8)
    heads: int | None = Field(None, ge=1)
    context_tokens: int = Field(2_048, ge=16)
    rope_base: float = Field(100_000.0, gt=1)
    qk_scale: float = Field(1.2, gt=0, description="factor on q and on k after QK-norm (nanochat: 1.2, nanocode: 1)")
    mlp_ratio: int = Field(4, ge=1)
    softcap: float = Field(15.0, gt=0, description="logits = softcap * tanh(logits / softcap)")
    tie_embeddings: bool = False
    value_embeddings: bool = Field(
        False, description="add a gated embedding of the token to every second layer's values"
    )
    layer_scalars: bool = Field(False, description="learnt weights of the stream and of the embeddings at each layer")
    smear: bool = Field(True, description="mix each token's embedding with its predecessor's, gated (nanochat)")
    dtype: Literal["float32", "bfloat16"] = Field("bfloat16", description="of activations; parameters are float32")


class OptimizerConfig(Section):
    """Muon for the matrices of the blocks, AdamW for the rest."""

    muon_lr: float = Field(0.02, ge=0)
    muon_momentum: float = Field(0.95, ge=0, lt=1)
    muon_weight_decay: float | None = Field(None, ge=0, description="left out: by the depth in pretraining, else 0")
    embedding_lr: float = Field(0.3, ge=0)
    unembedding_lr: float = Field(0.008, ge=0)
    scalar_lr: float = Field(0.2, ge=0)
    adam_beta1: float = Field(0.8, ge=0, lt=1)
    adam_beta2: float = Field(0.95, ge=0, lt=1)
    adam_epsilon: float = Field(1e-10, gt=0)
    adam_weight_decay: float = Field(0.0, ge=0)
    warmup_steps: int = Field(0, ge=0)
    warmdown_fraction: float = Field(0.5, ge=0, le=1, description="share of the steps over which the rate falls")
    final_lr_fraction: float = Field(0.0, ge=0, le=1)


class PretrainConfig(Section):
    steps: int | None = Field(None, ge=1, description="optimizer steps; left out, they follow from the depth")
    batch_tokens: int | None = Field(None, ge=16, description="tokens a step; left out, they follow from the depth")
    optimizer: OptimizerConfig = OptimizerConfig()
    samples: int = Field(4, ge=0, le=8, description="continuations written beside the model")


class SftConfig(Section):
    steps: int = Field(500, ge=1)
    batch_tokens: int = Field(2**19, ge=16)
    optimizer: OptimizerConfig = OptimizerConfig()
    stock_fraction: float = Field(0.5, ge=0, le=1, description="share of conversations in the stock register")


class DpoConfig(Section):
    beta: float = Field(0.1, gt=0)
    nll_weight: float = Field(1.0, ge=0, description="RPO: weight of the chosen reply's mean negative log-likelihood")
    steps: int = Field(80, ge=1)
    batch_pairs: int = Field(16, ge=2)
    lr: float = Field(1e-4, gt=0)
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.95, ge=0, lt=1)
    warmup_steps: int = Field(5, ge=0)
    max_chosen_drop_nats: float = Field(2.0, gt=0, description="stop when the mean chosen log-prob falls this far")
    retention_tasks: int = Field(
        64, ge=0, description="validation tasks generated before and after; 0: no retention gate"
    )
    max_retention_loss: float = Field(0.10, ge=0, le=1, description="task success that may be lost on them")


class EndpointConfig(Section):
    """One OpenAI-compatible endpoint. Without a `base_url` the stage starts the embedded rule-based teacher."""

    base_url: str | None = not_identity(None)
    model: str = "nanocode-rules"
    api_key_env: str | None = not_identity(None, description="name of the environment variable that holds the key")
    temperature: float = Field(0.7, ge=0)
    max_tokens: int = Field(512, ge=1)
    structured_output: Literal["json_schema", "json_object", "off"] = Field(
        "json_schema", description="how JSON is asked of a critic or reviser; off: by the prompt alone"
    )
    timeout_seconds: float = not_identity(60.0, gt=0)
    max_attempts: int = not_identity(4, ge=1)


class ConstitutionConfig(Section):
    sft_tasks: int = Field(ge=1, description="tasks rolled out for SFT")
    preference_tasks: int = Field(ge=1, description="tasks rolled out for preference pairs (other prompts)")
    rollout_shards: int = not_identity(2, ge=1, description="parallel rollout stages")
    accept_score: int = Field(5, ge=1, le=5)
    max_revisions: int = Field(2, ge=0)
    max_turns: int = Field(6, ge=1)
    max_length_ratio: float = Field(3.0, ge=1, description="of a pair's trained tokens, longer side to shorter")
    concurrency: int = not_identity(8, ge=1, description="requests in flight per rollout stage")
    generator: EndpointConfig = EndpointConfig()
    critic: EndpointConfig = EndpointConfig(temperature=0.0)
    reviser: EndpointConfig = EndpointConfig(temperature=0.2)


class EvaluationConfig(Section):
    tasks: int = Field(256, ge=1, description="held-out tasks; every model sees the same ones")
    seed: int = Field(0, ge=0, description="of the tasks and of sampling; not the run's, so that runs can be compared")
    held_out_bytes: int = Field(1_000_000, gt=0, description="per register, for bits per byte")
    sampled_temperature: float = Field(1.0, gt=0)
    max_turns: int = Field(6, ge=1)
    max_new_tokens: int = Field(96, ge=1, description="per assistant turn")


class ComputeConfig(Section):
    """How a run is carried out. None of it enters a cache key."""

    checkpoint_every_seconds: float = Field(30.0, gt=0)
    keep_checkpoints: int = Field(2, ge=1)
    grace_seconds: float = Field(25.0, gt=0)
    mesh_data: int | None = not_identity(
        None, ge=1, description="devices that share the rows, weights repeated; left out: all that the others leave"
    )
    mesh_fsdp: int = not_identity(1, ge=1, description="devices that share the rows and the weights")
    mesh_tensor: int = not_identity(1, ge=1, description="devices that share each matrix product (heads, MLP width)")
    device_batch_rows: int | None = not_identity(
        None, ge=1, description="rows that a device computes at once, the rest is accumulated; left out: all of them"
    )


class StoreConfig(Section):
    url: str = "file:.nanocode/store"


class Config(Section):
    """A whole run."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", description="releases are numbered under this name")
    seed: int = Field(1, ge=0)
    data: DataConfig
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig
    pretrain: PretrainConfig = PretrainConfig()
    constitution: ConstitutionConfig
    sft: SftConfig = SftConfig()
    dpo: DpoConfig = DpoConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    compute: ComputeConfig = ComputeConfig()
    store: StoreConfig = StoreConfig()


def load(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Read and validate a TOML file; `overrides` are ``section.key=value`` with TOML values. Raises ConfigError."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"no config file at {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    return parse(text, overrides, where=str(path))


def parse(text: str, overrides: Sequence[str] = (), where: str = "config") -> Config:
    """Validate TOML text. Raises ConfigError with one line per fault."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not valid TOML: {error}") from error
    for override in overrides:
        _override(values, override)
    return validate(values, where)


def read_values(text: str) -> dict[str, Any]:
    """TOML text as plain data, checked: what Metaflow stores of a config file. Raises ConfigError."""
    parse(text)
    return tomllib.loads(text)


def with_overrides(values: Mapping[str, Any], overrides: Sequence[str]) -> Config:
    """The configuration of plain data with overrides applied. Raises ConfigError."""
    changed = copy.deepcopy(dict(values))
    for override in overrides:
        _override(changed, override)
    return validate(changed)


def validate(values: Mapping[str, Any], where: str = "config") -> Config:
    """Validate plain data. Raises ConfigError with one line per fault, the nearest valid name for an unknown key."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        lines = [_explain(fault) for fault in error.errors()]
        raise ConfigError(f"{where}: " + "; ".join(lines)) from None


def _override(values: dict[str, Any], override: str) -> None:
    """Set ``a.b.c=value`` in nested tables; a value that is not TOML counts as a string."""
    dotted, separator, raw = override.partition("=")
    if not separator or not dotted.strip():
        raise ConfigError(f"override {override!r} must look like section.key=value")
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw
    *parents, last = dotted.strip().split(".")
    table = values
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise ConfigError(f"override {override!r}: {parent} is not a section")
    table[last] = value


def _explain(fault: Any) -> str:
    location = [part for index, part in enumerate(fault["loc"]) if index != _KIND_POSITION or part not in _SOURCE_KINDS]
    dotted = ".".join(str(part) for part in location)
    if fault["type"] == "extra_forbidden":
        *parents, unknown = location
        names = _fields_at(parents)
        close = difflib.get_close_matches(str(unknown), names, n=1, cutoff=0.5)
        section = ".".join(str(part) for part in parents) or "the top level"
        hint = f"did you mean {close[0]!r}?" if close else f"{section} takes: {', '.join(sorted(names))}"
        return f"unknown key {dotted!r}: {hint}"
    if fault["type"] == "missing":
        return f"{dotted} is missing"
    return f"{dotted or 'config'}: {fault['msg']} (got {fault['input']!r})"


# In the location of a fault, pydantic names the kind of a source after its number: data.sources.0.files.glob.
_KIND_POSITION = 3
_SOURCE_KINDS = {"python_docs", "python_stdlib", "files", "hub"}


def _fields_at(location: Sequence[Any]) -> set[str]:
    """The valid keys of the section at `location`; within data.sources, those of every kind of source."""
    if list(location[:2]) == ["data", "sources"]:
        kinds = (PythonDocsSource, PythonStdlibSource, FilesSource, HubSource)
        return {name for kind in kinds for name in kind.model_fields}
    section: Any = Config
    for part in location:
        info = section.model_fields.get(str(part))
        if info is None or not isinstance(info.annotation, type) or not issubclass(info.annotation, Section):
            return set()
        section = info.annotation
    return set(section.model_fields)
