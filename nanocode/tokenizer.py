"""Byte-level BPE: training, encoding, decoding (Hugging Face ``tokenizers``), saved as one ``tokenizer.json``.

The split pattern is nanochat's variant of GPT-4's: contractions, words with one leading symbol, digits by one or two,
symbols, line ends, spaces. The control tokens stand at the end of the vocabulary and are never produced from text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HFTokenizer

SPECIAL_TOKENS = (
    "<|bos|>",
    "<|user_start|>",
    "<|user_end|>",
    "<|assistant_start|>",
    "<|assistant_end|>",
    "<|tool_call_start|>",
    "<|tool_arg|>",
    "<|tool_val|>",
    "<|tool_call_end|>",
    "<|tool_result_start|>",
    "<|tool_result_end|>",
    "<|pad|>",
)

SPLIT_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)"
    r"|[^\r\n\p{L}\p{N}]?+\p{L}+"
    r"|\p{N}{1,2}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]"
    r"|\s+(?!\S)"
    r"|\s+"
)


class TokenizerError(ValueError):
    """A tokenizer that cannot be trained or loaded."""


class Tokenizer:
    """Text to ids and back. ``special`` maps each control token to its id; ``encode`` never returns one."""

    def __init__(self, backend: HFTokenizer) -> None:
        backend.encode_special_tokens = True  # the *characters* of a control token are ordinary text
        self._backend = backend
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        vocabulary = backend.get_vocab(with_added_tokens=True)
        missing = [token for token in SPECIAL_TOKENS if token not in vocabulary]
        if missing:
            raise TokenizerError(f"not a nanocode tokenizer: it lacks {', '.join(missing)}")
        self.special = {token: vocabulary[token] for token in SPECIAL_TOKENS}
        self.special_ids = frozenset(self.special.values())
        self.bos, self.pad = self.special["<|bos|>"], self.special["<|pad|>"]

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> Tokenizer:
        """Fit merges on `texts` so that bytes + merges + control tokens fill `vocab_size` exactly.

        Raises TokenizerError if the vocabulary is too small to hold every byte, or the text too little to fill it.
        """
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        if vocab_size < len(alphabet) + len(SPECIAL_TOKENS):
            raise TokenizerError(f"tokenizer.vocab_size must be at least {len(alphabet) + len(SPECIAL_TOKENS)}")
        backend = HFTokenizer(models.BPE(byte_fallback=False))
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - len(SPECIAL_TOKENS),
            initial_alphabet=sorted(alphabet),
            special_tokens=[],
            show_progress=False,
        )
        backend.train_from_iterator(texts, trainer)
        filled = backend.get_vocab_size()
        if filled != vocab_size - len(SPECIAL_TOKENS):
            raise TokenizerError(
                f"the training text only yields {filled} of {vocab_size - len(SPECIAL_TOKENS)} tokens: "
                "give more text or lower tokenizer.vocab_size"
            )
        backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
        return cls(backend)

    @classmethod
    def load(cls, path: Path | str) -> Tokenizer:
        """Read ``tokenizer.json``. Raises TokenizerError when the file is missing, damaged or lacks the control
        tokens.
        """
        try:
            return cls(HFTokenizer.from_str(Path(path).read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise TokenizerError(f"no tokenizer at {path}") from None
        except TokenizerError:
            raise
        except Exception as error:  # the Rust library raises bare Exception on bad JSON
            raise TokenizerError(f"{path} is not a tokenizer file: {error}") from error

    def save(self, path: Path | str) -> None:
        """Write ``tokenizer.json``; the same merges give the same bytes."""
        Path(path).write_text(self._backend.to_str(pretty=False), encoding="utf-8")

    def encode(self, text: str) -> list[int]:
        return self._backend.encode(text, add_special_tokens=False).ids

    def encode_array(self, text: str) -> np.ndarray:
        """(tokens,) int32: `encode` for much text."""
        return np.array(self.encode(text), dtype=np.int32)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._backend.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ordinary ids; bytes that are not UTF-8 become U+FFFD, control tokens vanish."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        return b"".join(self._token_bytes[token] for token in ids)

    @cached_property
    def byte_lengths(self) -> np.ndarray:
        """(vocab_size,) int32: bytes that each token stands for, 0 for control tokens."""
        return np.array([len(raw) for raw in self._token_bytes], dtype=np.int32)

    @cached_property
    def _token_bytes(self) -> list[bytes]:
        byte_of = {character: value for value, character in enumerate(_byte_characters())}
        table = []
        for token in range(self.vocab_size):
            if token in self.special_ids:
                table.append(b"")
            else:
                table.append(bytes(byte_of[character] for character in self._backend.id_to_token(token) or ""))
        return table


def _byte_characters() -> list[str]:
    """The printable character that byte-level BPE (GPT-2) writes for each of the 256 bytes."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    characters, spare = [], 256
    for value in range(256):
        if value in printable:
            characters.append(chr(value))
        else:
            characters.append(chr(spare))
            spare += 1
    return characters
