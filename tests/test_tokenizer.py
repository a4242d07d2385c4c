from __future__ import annotations

import hashlib
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.tokenizer import SPECIAL_TOKENS, Tokenizer, TokenizerError

TEXTS = st.lists(st.one_of(st.text(max_size=30), st.sampled_from(SPECIAL_TOKENS)), max_size=6).map("".join)


def corpus() -> list[str]:
    """Pseudo-words with many ties between pair counts, so that an unstable order would show."""
    rng = random.Random(5)
    words = ["".join(rng.choices("abcdefgh_(){}:=é世 ", k=rng.randint(1, 9))) for _ in range(400)]
    return [" ".join(rng.choices(words, k=40)) + "\n" for _ in range(60)]


def test_training_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("first", "second"):
        Tokenizer.train(corpus(), 600).save(tmp_path / name)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_another_process_with_another_hash_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    Tokenizer.train(corpus(), 600).save(tmp_path / "here.json")
    code = (
        "import json, sys; from nanocode.tokenizer import Tokenizer\n"
        "Tokenizer.train(json.load(sys.stdin), 600).save(sys.argv[1])"
    )
    for seed in ("1", "2"):
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "there.json")],
            input=json.dumps(corpus()).encode(),
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[1])},
            check=True,
        )
        assert (tmp_path / "there.json").read_bytes() == (tmp_path / "here.json").read_bytes()


def test_control_tokens_stand_last_and_in_order(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 300
    assert [tokenizer.special[token] for token in SPECIAL_TOKENS] == list(range(288, 300))
    assert (tokenizer.bos, tokenizer.pad) == (288, 299)


def test_a_corpus_full_of_control_token_characters_moves_no_control_token() -> None:
    texts = ["".join(SPECIAL_TOKENS) * 50, *corpus()]
    tokenizer = Tokenizer.train(texts, 600)
    assert [tokenizer.special[token] for token in SPECIAL_TOKENS] == list(range(588, 600))
    assert tokenizer.special_ids.isdisjoint(tokenizer.encode(texts[0]))


@given(text=TEXTS)
def test_encoding_never_yields_a_control_token(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.special_ids.isdisjoint(tokenizer.encode(text))


@given(text=TEXTS)
def test_decoding_what_was_encoded_gives_the_text_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=TEXTS)
def test_byte_lengths_add_up_to_the_bytes_of_the_text(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.byte_lengths[tokenizer.encode(text)].sum() == len(text.encode())


@given(texts=st.lists(TEXTS, max_size=4))
def test_a_batch_is_encoded_as_its_texts_are(tokenizer: Tokenizer, texts: list[str]) -> None:
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


def test_characters_of_every_plane_survive(tokenizer: Tokenizer) -> None:
    codes = [*range(0xD800), *range(0xE000, 0x10000), *range(0x10000, 0x110000, 97)]
    characters = [chr(code) for code in codes]
    texts = ["".join(characters[start : start + 64]) for start in range(0, len(characters), 64)]
    assert [tokenizer.decode_bytes(ids) for ids in tokenizer.encode_batch(texts)] == [text.encode() for text in texts]


def test_every_byte_is_a_token_and_control_tokens_have_no_bytes(tokenizer: Tokenizer) -> None:
    singles = {tokenizer.decode_bytes([token]) for token in range(300) if tokenizer.byte_lengths[token] == 1}
    assert singles == {bytes([value]) for value in range(256)}
    assert [int(tokenizer.byte_lengths[token]) for token in tokenizer.special.values()] == [0] * len(SPECIAL_TOKENS)
    assert tokenizer.decode([*tokenizer.special.values(), *tokenizer.encode("x")]) == "x"


def test_half_a_character_decodes_to_the_replacement_character(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("世")[:2]) == "\ufffd"


def test_digits_are_grouped_by_at_most_two() -> None:
    tokenizer = Tokenizer.train(["1234567890 " * 40 + "2024 " * 200 + "٣٤٥٦ " * 40], 268 + 12)
    pieces = [tokenizer.decode_bytes([token]) for token in tokenizer.encode("20242024")]
    assert pieces == [b"20", b"24", b"20", b"24"]
    digits = [tokenizer.decode_bytes([token]) for token in range(tokenizer.vocab_size)]
    assert max(len(piece) for piece in digits if piece.isdigit()) == 2


def test_saving_and_loading_changes_nothing(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "a.json")
    loaded = Tokenizer.load(tmp_path / "a.json")
    loaded.save(tmp_path / "b.json")
    assert (
        hashlib.sha256((tmp_path / "a.json").read_bytes()).digest()
        == hashlib.sha256((tmp_path / "b.json").read_bytes()).digest()
    )
    text = "the <|bos|> file 1234 世界"
    assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.special == tokenizer.special


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1, 2]", b"not json", b"\xff\xfe\x00", b'{"model": {"type": "BPE"}}']
)
def test_a_file_that_is_no_tokenizer_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "wrong.json").write_bytes(content)
    with pytest.raises(TokenizerError, match=r"wrong\.json"):
        Tokenizer.load(tmp_path / "wrong.json")


def test_a_missing_tokenizer_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="no tokenizer at"):
        Tokenizer.load(tmp_path / "absent.json")
    with pytest.raises(TokenizerError):
        Tokenizer.load(tmp_path)


def test_a_tokenizer_without_the_control_tokens_is_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as HFTokenizer
    from tokenizers import models

    HFTokenizer(models.BPE({"a": 0}, [])).save(str(tmp_path / "other.json"))
    with pytest.raises(TokenizerError, match="lacks <\\|bos\\|>"):
        Tokenizer.load(tmp_path / "other.json")


def test_a_vocabulary_too_small_for_the_bytes_is_refused() -> None:
    with pytest.raises(TokenizerError, match="at least 268"):
        Tokenizer.train(["text"], 267)


def test_too_little_text_for_the_vocabulary_is_refused() -> None:
    with pytest.raises(TokenizerError, match="give more text or lower"):
        Tokenizer.train(["short"], 1_000)


@given(st.text())
def test_encoding_gives_the_ids_of_the_library(tokenizer: Tokenizer, text: str) -> None:
    expected = tokenizer._backend.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text) == tokenizer.encode(text) == expected, "found out, and remembered"
    assert tokenizer.encode_array(text).tolist() == expected


def test_arrays_are_the_callers_own(tokenizer: Tokenizer) -> None:
    first = tokenizer.encode_array("the agent reads")
    kept = first.copy()
    first[:] = 0
    assert first.dtype == np.int32 and np.array_equal(tokenizer.encode_array("the agent reads"), kept)


def test_training_gives_the_file_of_the_library(tmp_path: Path) -> None:
    from tokenizers import AddedToken, decoders, models, trainers
    from tokenizers import Tokenizer as HFTokenizer

    from nanocode.tokenizer import _byte_characters, _pre_tokenizer

    texts = [Path(module.__file__).read_text(encoding="utf-8") for module in (json, re, pytest)]
    backend = HFTokenizer(models.BPE(byte_fallback=False))
    backend.pre_tokenizer, backend.decoder = _pre_tokenizer(), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=sorted(_byte_characters()), special_tokens=[], show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    for processes in (1, 2):
        Tokenizer.train(texts, 700 + len(SPECIAL_TOKENS), processes).save(tmp_path / "own.json")
        assert (tmp_path / "own.json").read_text(encoding="utf-8") == backend.to_str(pretty=False)


def test_a_tokenizer_that_splits_text_in_another_way_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Its ids would not be those of the file."""
    tokenizer.save(tmp_path / "own.json")
    values = json.loads((tmp_path / "own.json").read_text(encoding="utf-8"))
    values["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\s+"
    (tmp_path / "own.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(TokenizerError, match="splits text into other words"):
        Tokenizer.load(tmp_path / "own.json")
