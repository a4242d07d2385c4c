"""`[constitution]`: what is generated, criticised and revised, by whom, and from which public sets."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from nanocode.config.data import FilterConfig
from nanocode.config.section import Section, not_identity


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
