"""`[data]`: sources, filters, and the texts that must not be trained on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from nanocode.config.section import Section, not_identity

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
