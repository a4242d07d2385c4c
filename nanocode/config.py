"""The typed configuration: one TOML file describes a whole run, one section a stage.

Every section is a frozen pydantic model with units in its names and refuses unknown keys; `nanocode.config_file` reads
the file and explains what is wrong with it.
Fields marked `not_identity` (addresses, concurrency, retry and checkpoint cadence) never decide what comes out of a
stage and so never enter a cache key; `identity` gives the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

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


FilterAction = Literal["off", "count", "redact", "drop"]


class FilterConfig(Section):
    """What happens to a document in which a rule of `nanocode.data.filters` finds something.

    off: not looked for; count: counted and left as it is; redact: replaced by a placeholder; drop: the whole document.
    """

    private_key: FilterAction = "redact"
    aws_key: FilterAction = "redact"
    github_token: FilterAction = "redact"
    slack_token: FilterAction = "redact"
    google_key: FilterAction = "redact"
    jwt: FilterAction = "redact"
    assigned_secret: FilterAction = Field("redact", description="a random-looking string given to a name like password")
    email: FilterAction = "redact"
    ipv4: FilterAction = Field("redact", description="public addresses; private and reserved ones are nobody's")
    phone: FilterAction = "redact"
    credit_card: FilterAction = Field("redact", description="numbers of an issuer whose Luhn digit is right")


# The library's contact addresses credit its authors, who published them with it; examples are the rest.
PUBLISHED_LIBRARY = FilterConfig(email="count", ipv4="count", phone="count", credit_card="count")


class Source(Section):
    """What every source has. `register` says under which bits-per-byte figure its held-out documents count."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    register_as: Literal["text", "code"]
    weight: float = Field(1.0, gt=0, description="share of the training tokens, relative to the other sources")
    max_bytes: int | None = Field(None, gt=0, description="stop after this many bytes of kept text")
    filters: FilterConfig = FilterConfig()


class PythonDocsSource(Source):
    """The running interpreter's documentation: docstrings, `pydoc_data` and, where installed, the reST docs."""

    kind: Literal["python_docs"]
    register_as: Literal["text", "code"] = "text"
    filters: FilterConfig = PUBLISHED_LIBRARY


class PythonStdlibSource(Source):
    """The running interpreter's standard library, tests left out."""

    kind: Literal["python_stdlib"]
    register_as: Literal["text", "code"] = "code"
    filters: FilterConfig = PUBLISHED_LIBRARY


class TableSource(Source):
    """Rows with a text column, and possibly a column with each document's own licence."""

    text_column: str = Field("text", description="'*' takes the whole row, as a JSON object")
    licence: str = Field(description="of the collection; of every document in it unless there is a licence_column")
    licence_column: str | None = Field(None, description="column with a document's licence, a string or a list of them")
    licences: tuple[str, ...] = Field(
        (), description="licences let through, case aside; all of a document's must be among them. Empty: any"
    )

    @model_validator(mode="after")
    def _allowing_needs_a_column(self) -> TableSource:
        if self.licences and self.licence_column is None:
            raise ValueError("licences needs licence_column: it says where a document's licence stands")
        return self


class FilesSource(TableSource):
    """Files by glob (local, s3://, gs://): .parquet and .jsonl (also .gz, .zst) hold a document a row, others one."""

    kind: Literal["files"]
    glob: str


class HubSource(TableSource):
    """A Hugging Face dataset, streamed."""

    kind: Literal["hub"]
    dataset: str
    subset: str | None = None
    split: str = "train"
    data_files: tuple[str, ...] = Field((), description="read these files of the dataset alone (names or globs)")
    revision: str = Field(
        pattern=r"^[0-9a-f]{40}$", description="commit hash of the dataset: a moving branch cannot be audited"
    )


AnySource = Annotated[
    PythonDocsSource | PythonStdlibSource | FilesSource | HubSource,
    Field(discriminator="kind"),
]


class EvaluationSet(Section):
    """Texts that must not be trained on. `sha256` pins their content, which therefore decides the shards.

    files: every .jsonl (also .gz, .zst), .parquet or text file that a local glob finds, rows by their `text_columns`.
    tasks: the prompts of `tasks` evaluation tasks of the built-in families.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    kind: Literal["files", "tasks"] = "files"
    glob: str | None = None
    text_columns: tuple[str, ...] = Field(("text",), min_length=1, description="joined into one text per item")
    tasks: int = Field(256, ge=1)
    seed: int = Field(0, ge=0)
    sha256: str = Field(description="of the items; a wrong one is refused with the right one")

    @model_validator(mode="after")
    def _files_have_a_glob(self) -> EvaluationSet:
        if (self.glob is not None) != (self.kind == "files"):
            raise ValueError("an evaluation set of kind 'files' needs a glob, and no other kind takes one")
        return self


class DecontaminationConfig(Section):
    """Overlap by runs of `words` words with every item; coverage is the share of an item's words in such runs."""

    sets: tuple[EvaluationSet, ...] = ()
    words: int = Field(13, ge=4, description="words of a run; an item that is shorter is compared whole")
    min_words: int = Field(8, ge=1, description="items shorter than this say nothing and are counted as unchecked")
    min_coverage: float = Field(0.5, gt=0, le=1, description="from which a document counts as contaminated")
    action: Literal["drop", "report"] = "drop"


class DataConfig(Section):
    sources: tuple[AnySource, ...] = Field(min_length=1)
    validation_fraction: float = Field(0.05, gt=0, lt=0.5, description="share of documents held out, by a stable hash")
    near_duplicate_threshold: float = Field(
        0.8, gt=0, le=1, description="MinHash Jaccard from which a document is dropped; 1: exact duplicates alone"
    )
    min_document_bytes: int = Field(64, ge=1)
    max_document_bytes: int = Field(1_000_000, ge=1)
    shard_bytes: int = Field(64_000_000, ge=1_000, description="text after which the shards of both splits are closed")
    decontamination: DecontaminationConfig = DecontaminationConfig()
    workers: int = not_identity(1, ge=1, description="processes that filter a source's documents")
    max_attempts: int = not_identity(6, ge=1, description="of a read from the network, without progress between")

    @model_validator(mode="after")
    def _names_are_unique(self) -> DataConfig:
        for what, named in (("sources", self.sources), ("decontamination.sets", self.decontamination.sets)):
            names = [each.name for each in named]
            if len(set(names)) != len(names):
                raise ValueError(f"two data.{what} share a name")
        return self


class TokenizerConfig(Section):
    vocab_size: int = Field(32_768, ge=268, description="bytes + merges + control tokens")
    max_bytes: int = Field(2_000_000_000, gt=0, description="training text, taken evenly from the sources")
    max_document_bytes: int = Field(10_000, gt=0, description="of one document")
    task_samples: int = Field(0, ge=0, description="SFT-split task conversations added to the training text")


class ModelConfig(Section):
    """`depth` is the one dial: what is left out follows from it by the recipe's rules (`nanocode.model.depth`).

    The defaults below are nanochat's; `recipe = "nanocode"` takes the values of `_NANOCODE` where they differ.
    """

    recipe: Literal["nanochat", "nanocode"] = "nanochat"
    depth: int = Field(ge=1)
    width: int | None = Field(None, ge=8)
    heads: int | None = Field(None, ge=1)
    kv_heads: int | None = Field(None, ge=1, description="heads of keys and values, shared by groups; left out: heads")
    context_tokens: int = Field(2_048, ge=16)
    window_pattern: str = Field(
        "SSSL",
        pattern="^[SL]+$",
        description="repeated over the layers: L sees the whole context, S a quarter of it; the last layer is always L",
    )
    mask_documents: bool = Field(False, description="documents packed into one row cannot see each other")
    rope_base: float = Field(100_000.0, gt=1)
    qk_scale: float = Field(1.2, gt=0, description="factor on q and on k after QK-norm (nanochat: 1.2, nanocode: 1)")
    norm_epsilon: float = Field(1.1920929e-07, gt=0, description="nanochat: float32's own, for every activation type")
    mlp_ratio: int = Field(4, ge=1)
    softcap: float = Field(15.0, gt=0, description="logits = softcap * tanh(logits / softcap)")
    tie_embeddings: bool = False
    value_embeddings: bool = Field(
        True, description="add a gated embedding of the token to every second layer's values (nanochat)"
    )
    layer_scalars: bool = Field(True, description="learnt weights of the stream and of the embeddings at each layer")
    smear: bool = Field(True, description="mix each token's embedding with its predecessor's, gated (nanochat)")
    backout: bool = Field(True, description="take a learnt share of the middle of the stream off its end (nanochat)")
    embedding_stddev: float = Field(0.8, gt=0, description="at the start; left out with tied embeddings: 0.02")
    unembedding_stddev: float = Field(0.001, gt=0, description="of an untied output table, at the start")
    mlp_init_factor: float = Field(0.4, gt=0, description="of the MLP's first matrix, relative to attention's")
    dtype: Literal["float32", "bfloat16"] = Field("bfloat16", description="of activations; parameters are float32")
    attention: Literal["auto", "splash", "cudnn", "xla", "blockwise"] = not_identity(
        "auto", description="auto: by platform, type and shape (`nanocode.model.attention`)"
    )
    remat: Literal["none", "block", "matmuls"] = not_identity(
        "none", description="what a backward pass computes again: whole blocks, or all of them but matrix products"
    )
    scan_layers: bool = not_identity(
        False, description="compile one group of unlike layers and loop over the groups, not every layer by itself"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_from_recipe(cls, values: Any) -> Any:
        """Fields left out take the recipe's values, so that a validated config says everything."""
        if not isinstance(values, Mapping):
            return values
        filled = dict(_NANOCODE) if values.get("recipe") == "nanocode" else {}
        if values.get("tie_embeddings") is True:
            # A tied table is the output matrix too: small, the first loss is near ln V; it is normed on the way in.
            filled["embedding_stddev"] = 0.02
        return filled | dict(values)


_NANOCODE: dict[str, Any] = {
    "window_pattern": "L",
    "rope_base": 10_000.0,
    "qk_scale": 1.0,
    "norm_epsilon": 1e-6,
    "value_embeddings": False,
    "layer_scalars": False,
    "smear": False,
    "backout": False,
    "embedding_stddev": 1.0,
    "mlp_init_factor": 1.0,
}


class AdamGroupConfig(Section):
    """One group of AdamW; what is left out follows from the recipe (`nanocode.training.recipes`)."""

    lr: float | None = Field(None, ge=0)
    beta1: float | None = Field(None, ge=0, lt=1)
    beta2: float | None = Field(None, ge=0, lt=1)
    epsilon: float | None = Field(None, gt=0)
    weight_decay: float | None = Field(None, ge=0)
    width_scaled: bool | None = Field(None, description="rate times (width / 768)^-1/2")
    batch_scaled: bool | None = Field(None, description="rate times the factor that follows from the batch")


class OptimizerConfig(Section):
    """Muon for the matrices of the blocks, AdamW in groups for the rest.

    What is left out follows from the recipe (`nanocode.training.recipes`).
    """

    recipe: Literal["plain", "nanochat", "nanocode"] = Field(
        "plain", description="plain: Muon without its additions and one AdamW; else as that project has it"
    )
    lr_scale: float = Field(1.0, gt=0, description="on every rate, the recipe's and those given here")
    muon_lr: float | None = Field(None, ge=0)
    muon_momentum: float | None = Field(None, ge=0, lt=1)
    muon_momentum_start: float | None = Field(None, ge=0, lt=1, description="at the first step")
    muon_momentum_end: float | None = Field(None, ge=0, lt=1, description="after the warm-down of the rate")
    muon_momentum_warmup_steps: int | None = Field(None, ge=0, description="from muon_momentum_start to muon_momentum")
    muon_iteration: Literal["polar_express", "newton_schulz"] | None = Field(None, description="how to orthogonalise")
    muon_bfloat16: bool | None = Field(None, description="orthogonalise in bfloat16, not in the parameters' type")
    muon_equalise: bool | None = Field(None, description="MuonEq: bring the rows to one norm before")
    muon_rescale: bool | None = Field(None, description="Muon+: to the norm of a semi-orthogonal matrix after")
    muon_normalise: bool | None = Field(None, description="NorMuon: divide lines by their running mean square")
    muon_normalise_beta2: float | None = Field(None, ge=0, lt=1)
    muon_weight_decay: float | None = Field(None, ge=0, description="left out: by the depth in pretraining, else 0")
    muon_cautious: bool | None = Field(None, description="decay only what the step shrinks anyway")
    muon_decay_schedule: Literal["constant", "cosine"] | None = Field(None, description="cosine: to 0 over the run")
    embedding: AdamGroupConfig = AdamGroupConfig()
    unembedding: AdamGroupConfig = AdamGroupConfig()
    value_embeddings: AdamGroupConfig = AdamGroupConfig()
    stream_scale: AdamGroupConfig = AdamGroupConfig()
    embedding_scale: AdamGroupConfig = AdamGroupConfig()
    smear_backout: AdamGroupConfig = AdamGroupConfig()
    warmup_steps: int | None = Field(None, ge=0)
    warmdown_fraction: float | None = Field(
        None, ge=0, le=1, description="share of the steps over which the rate falls"
    )
    final_lr_fraction: float | None = Field(None, ge=0, le=1)


class GuardConfig(Section):
    """When training returns to its last good checkpoint and leaves the suspect batches out."""

    spike_deviations: float = Field(
        12.0, gt=0, description="a loss so many mean deviations above its running mean is a fault ..."
    )
    spike_nats: float = Field(0.5, gt=0, description="... if it is also this far above")
    max_returns: int = not_identity(3, ge=0, description="after so many, the next fault ends the stage")


class PretrainConfig(Section):
    steps: int | None = Field(None, ge=1, description="optimizer steps; left out, they follow from the depth")
    batch_tokens: int | None = Field(None, ge=16, description="tokens a step; left out, they follow from the depth")
    optimizer: OptimizerConfig = OptimizerConfig()
    samples: int = Field(4, ge=0, le=8, description="continuations written beside the model")
    guard: GuardConfig = GuardConfig()
    eval_every_steps: int | None = not_identity(None, ge=1, description="held-out bits per byte during training")
    eval_bytes: int = not_identity(200_000, gt=0, description="of each source, for eval_every_steps")
    sample_every_steps: int | None = not_identity(None, ge=1, description="continuations in the log")


class SftConfig(Section):
    steps: int = Field(500, ge=1)
    batch_tokens: int = Field(2**19, ge=16)
    optimizer: OptimizerConfig = OptimizerConfig()
    stock_fraction: float = Field(0.5, ge=0, le=1, description="share of conversations in the stock register")
    guard: GuardConfig = GuardConfig()


class DpoConfig(Section):
    beta: float = Field(0.1, gt=0)
    nll_weight: float = Field(1.0, ge=0, description="RPO: weight of the chosen reply's mean negative log-likelihood")
    steps: int = Field(80, ge=1)
    batch_pairs: int = Field(16, ge=2)
    lr: float = Field(1e-4, gt=0)
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.95, ge=0, lt=1)
    warmup_steps: int = Field(5, ge=0)
    guard: GuardConfig = GuardConfig()
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
    usd_per_million_input_tokens: float | None = not_identity(None, ge=0, description="for the cost ledger")
    usd_per_million_output_tokens: float | None = not_identity(None, ge=0, description="for the cost ledger")


class InstructionSource(Section):
    """A public set of instructions, turned into conversations with executed tool calls for SFT.

    Kinds name the columns: tulu_code (messages), self_oss_instruct (instruction, response), evol_codealpaca
    (instruction, output), messages (messages with tool calls, and possibly files).
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    kind: Literal["tulu_code", "self_oss_instruct", "evol_codealpaca", "messages"]
    licence: str = Field(description="of the set; of every row unless there is a licence_column")
    licence_column: str | None = None
    glob: str | None = Field(None, description="parquet or JSONL files (also .gz, .zst): local, s3://, gs://")
    dataset: str | None = Field(None, description="of the Hub, in place of a glob")
    subset: str | None = None
    split: str = "train"
    revision: str | None = Field(None, pattern=r"^[0-9a-f]{40}$", description="commit hash of the dataset")
    weight: float = Field(1.0, gt=0, description="rows of SFT, relative to 1 for all of the rollouts")
    max_rows: int | None = Field(None, ge=1, description="stop after so many kept conversations")
    max_code_lines: int = Field(200, ge=1, description="of the file that a row makes or changes")
    max_context_lines: int = Field(10, ge=0, description="that may be added to an edit to make its place unique")
    min_ascii: float = Field(0.85, ge=0, le=1, description="share of ASCII among the characters of the prose")
    near_duplicate_threshold: float = Field(0.9, gt=0, le=1, description="as in [data]; 1: exact duplicates alone")
    filters: FilterConfig = FilterConfig()
    restyle: bool = Field(False, description="let critic and reviser work on its words; train on what is accepted")
    preference_share: float = Field(
        0.25, ge=0, lt=1, description="of the conversations to restyle, those that make preference pairs instead"
    )

    @model_validator(mode="after")
    def _is_somewhere(self) -> InstructionSource:
        if (self.glob is None) == (self.dataset is None):
            raise ValueError("an instruction source needs either a glob or a dataset")
        if (self.dataset is None) != (self.revision is None):
            raise ValueError("a dataset needs its revision (a commit hash), and a glob takes none")
        return self


class ConstitutionConfig(Section):
    sft_tasks: int = Field(ge=1, description="tasks rolled out for SFT")
    preference_tasks: int = Field(ge=1, description="tasks rolled out for preference pairs (other prompts)")
    rollout_shards: int = not_identity(2, ge=1, description="parallel rollout stages")
    accept_score: int = Field(5, ge=1, le=5)
    max_revisions: int = Field(2, ge=0)
    max_turns: int = Field(6, ge=1)
    max_length_ratio: float = Field(3.0, ge=1, description="of a pair's trained tokens, longer side to shorter")
    concurrency: int = not_identity(8, ge=1, description="most requests in flight per rollout stage; fewer if too much")
    max_usd: float | None = not_identity(
        None, gt=0, description="spent on all data at most; each rollout stage gets its tasks' share; needs all prices"
    )
    max_tokens: int | None = not_identity(
        None, gt=0, description="the same limit in tokens, prompts and answers together"
    )
    calibration_auc: float = not_identity(
        0.8, ge=0, le=1, description="how well a model critic must tell good probes from bad ones; 0: do not ask it"
    )
    generator: EndpointConfig = EndpointConfig()
    critic: EndpointConfig = EndpointConfig(temperature=0.0)
    reviser: EndpointConfig = EndpointConfig(temperature=0.2)
    sources: tuple[InstructionSource, ...] = not_identity((), description="sets beside the rollouts; each has a stage")

    @model_validator(mode="after")
    def _a_limit_needs_prices(self) -> ConstitutionConfig:
        for part in ("generator", "critic", "reviser"):
            endpoint: EndpointConfig = getattr(self, part)
            prices = endpoint.usd_per_million_input_tokens, endpoint.usd_per_million_output_tokens
            if self.max_usd is not None and endpoint.base_url is not None and None in prices:
                raise ValueError(
                    f"constitution.max_usd is set, but what {endpoint.model} costs is unknown: give "
                    f"usd_per_million_input_tokens and usd_per_million_output_tokens of [constitution.{part}]"
                )
        return self

    @model_validator(mode="after")
    def _a_limit_is_shared_out(self) -> ConstitutionConfig:
        """Stages do not know of each other: the share of each must follow from the config."""
        for source in self.sources:
            if (self.max_usd or self.max_tokens) and source.restyle and source.max_rows is None:
                raise ValueError(
                    f"constitution.max_usd and max_tokens are shared out by tasks, and how many {source.name} has is "
                    "unknown: give its max_rows"
                )
        return self


class EvaluationConfig(Section):
    tasks: int = Field(256, ge=1, description="held-out tasks; every model sees the same ones")
    seed: int = Field(0, ge=0, description="of the tasks and of sampling; not the run's, so that runs can be compared")
    held_out_bytes: int = Field(1_000_000, gt=0, description="per register, for bits per byte")
    sampled_temperature: float = Field(1.0, gt=0)
    max_turns: int = Field(6, ge=1)
    max_new_tokens: int = Field(96, ge=1, description="per assistant turn")


class ComputeConfig(Section):
    """How a run is carried out. None of it enters a cache key."""

    checkpoint_every_seconds: float = Field(30.0, gt=0, description="the first saves of a stage come sooner")
    checkpoint_every_steps: int | None = not_identity(
        None, ge=1, description="of training, too; left out: by time alone"
    )
    keep_checkpoints: int = Field(2, ge=1)
    keep_best: str | None = not_identity(
        None,
        min_length=1,
        description="a held-out figure, as 'bpb_docs': the checkpoint with its lowest value is kept too",
    )
    lease_seconds: float = not_identity(
        60.0, ge=5, description="after which silence of its maker others take work over"
    )
    preemption: str = not_identity(
        "none", pattern=r"^(none|gce|aws|file:.+)$", description="who announces the machine's end: gce, aws, file:PATH"
    )
    grace_seconds: float = Field(25.0, gt=0)
    usd_per_device_hour: float | None = not_identity(
        None, ge=0, description="price of one device, for the cost ledger; left out: time is counted and money is not"
    )
    log_every_seconds: float = not_identity(5.0, ge=0, description="a line of a training stage's log")
    measure_ceiling: bool = not_identity(
        False, description="time a matrix product and log the share of it, where no peak of the device is known"
    )
    profile_steps: str | None = not_identity(
        None, pattern=r"^[1-9]\d*:[1-9]\d*$", description="first:last step to profile with jax.profiler"
    )
    compilation_cache: bool = not_identity(True, description="keep compiled programs in the workspace")
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = not_identity((), description="each is an extra to install")
    mesh_data: int | None = not_identity(
        None, ge=1, description="devices that share the rows, weights repeated; left out: all that the others leave"
    )
    mesh_fsdp: int = not_identity(1, ge=1, description="devices that share the rows and the weights")
    mesh_tensor: int = not_identity(1, ge=1, description="devices that share each matrix product (heads, MLP width)")
    device_batch_rows: int | None = not_identity(
        None, ge=1, description="rows that a device computes at once, the rest is accumulated; left out: all of them"
    )


class StoreConfig(Section):
    url: str = not_identity("file:.nanocode/store", description="file:PATH, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX")
    cache_bytes: int = not_identity(20_000_000_000, ge=0, description="of a remote store's blobs kept here; 0: none")
    unsafe_leases: bool = not_identity(
        False, description="use a server without conditional writes, where two runs at once may spoil each other"
    )


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
