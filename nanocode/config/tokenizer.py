"""`[tokenizer]`: how large it is and what it is fitted on."""

from __future__ import annotations

from pydantic import Field

from nanocode.config.section import Section


class TokenizerConfig(Section):
    vocab_size: int = Field(32_768, ge=268, description="bytes + merges + control tokens")
    max_bytes: int = Field(2_000_000_000, gt=0, description="training text, taken evenly from the sources")
    max_document_bytes: int = Field(10_000, gt=0, description="of one document")
    task_samples: int = Field(0, ge=0, description="SFT-split task conversations added to the training text")
