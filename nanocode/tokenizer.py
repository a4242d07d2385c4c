"""Byte-level BPE: training, encoding, decoding, saved as one ``tokenizer.json`` of Hugging Face's ``tokenizers``.

The library defines the format and what a text's tokens are. Splitting text into words, and the merges of frequent
words, are done here: the library's results, several times faster. The control tokens stand at the end of the
vocabulary and are never produced from text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as HFTokenizer

from nanocode.merges import learn_merges
from nanocode.words import SPLIT_PATTERN, words
from nanocode.workers import in_processes

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

CHUNK_CHARACTERS = 1 << 20
CACHED_WORDS = 1 << 18
LONGEST_CACHED_WORD = 64  # characters


class TokenizerError(ValueError):
    """A tokenizer that cannot be trained or loaded."""


class Tokenizer:
    """Text to ids and back. ``special`` maps each control token to its id; ``encode`` never returns one."""

    def __init__(self, backend: HFTokenizer) -> None:
        backend.encode_special_tokens = True  # the *characters* of a control token are ordinary text
        self._backend = backend
        self._known = _KnownWords(backend.model)
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        vocabulary = backend.get_vocab(with_added_tokens=True)
        missing = [token for token in SPECIAL_TOKENS if token not in vocabulary]
        if missing:
            raise TokenizerError(f"not a nanocode tokenizer: it lacks {', '.join(missing)}")
        if backend.normalizer is not None or backend.pre_tokenizer.__getstate__() != _pre_tokenizer().__getstate__():
            raise TokenizerError("not a nanocode tokenizer: it splits text into other words")
        self.special = {token: vocabulary[token] for token in SPECIAL_TOKENS}
        self.special_ids = frozenset(self.special.values())
        self.bos, self.pad = self.special["<|bos|>"], self.special["<|pad|>"]

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, processes: int = 1) -> Tokenizer:
        """Fit merges on `texts`, counted by `processes`, so that bytes + merges + control tokens fill `vocab_size`.

        Raises TokenizerError if the vocabulary is too small to hold every byte, or the text too little to fill it.
        """
        spelling = _byte_characters()
        alphabet = sorted(range(256), key=spelling.__getitem__)  # the order of ids
        wanted = vocab_size - len(SPECIAL_TOKENS)
        if wanted < len(alphabet):
            raise TokenizerError(f"tokenizer.vocab_size must be at least {len(alphabet) + len(SPECIAL_TOKENS)}")
        counts: Counter[str] = Counter()
        for counted in in_processes(word_counter, [], chunked(texts), processes):
            counts.update(counted)
        merges = learn_merges({word.encode(): count for word, count in counts.items()}, alphabet, wanted)
        tokens = [spelling[byte] for byte in alphabet]
        for left, right, result in merges:
            if result == len(tokens):
                tokens.append(tokens[left] + tokens[right])
        if len(tokens) != wanted:
            raise TokenizerError(
                f"the training text only yields {len(tokens)} of {wanted} tokens: "
                "give more text or lower tokenizer.vocab_size"
            )
        vocabulary = {token: index for index, token in enumerate(tokens)}
        spelled = [(tokens[left], tokens[right]) for left, right, _ in merges]
        backend = HFTokenizer(models.BPE(vocab=vocabulary, merges=spelled, byte_fallback=False))
        backend.pre_tokenizer = _pre_tokenizer()
        backend.decoder = decoders.ByteLevel()
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
        return self.encode_array(text).tolist()

    def encode_array(self, text: str) -> np.ndarray:
        """(tokens,) int32, a fresh array."""
        return np.frombuffer(bytearray().join(map(self._known.__getitem__, words(text))), dtype=np.int32)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

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


class _KnownWords(dict[str, bytes]):
    """Word -> its ids as int32, merged by the library the first time; the frequent words of a text are few."""

    def __init__(self, model: models.BPE) -> None:
        super().__init__()
        self._model = model
        self._spelling = _byte_characters()

    def __missing__(self, word: str) -> bytes:
        spelled = "".join(map(self._spelling.__getitem__, word.encode("utf-8")))
        ids = np.array([token.id for token in self._model.tokenize(spelled)], dtype=np.int32).tobytes()
        if len(word) <= LONGEST_CACHED_WORD and len(self) < CACHED_WORDS:
            self[word] = ids
        return ids


def chunked(texts: Iterable[str]) -> Iterator[list[str]]:
    """Whole texts, about a million characters of them at a time."""
    chunk: list[str] = []
    size = 0
    for text in texts:
        chunk.append(text)
        size += len(text)
        if size >= CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def word_counter() -> Callable[[list[str]], dict[str, int]]:
    """A function that counts the words of a list of texts."""
    return lambda texts: dict(Counter(chain.from_iterable(map(words, texts))))


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


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
