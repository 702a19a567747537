"""Tokens: a text goes there and back, and what was learned is kept with the run."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline import tokens
from pipeline.errors import UserError

KINDS = tokens.KINDS
SAMPLE = "Call me Ishmael. Some years ago—never mind how long precisely—\nhaving little or no money".encode()


@pytest.fixture(scope="module")
def known() -> dict[str, tokens.Tokens]:
    """Of each kind, learned from the sample."""
    return {kind: tokens.learned(kind, [SAMPLE * 3], 300, "dataset=text") for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_comes_back(known: dict[str, tokens.Tokens], kind: str) -> None:
    vocabulary = known[kind]
    encoded = vocabulary.encode(SAMPLE, "text")
    assert vocabulary.decode(encoded) == SAMPLE
    assert encoded.max() < vocabulary.size
    assert vocabulary.lengths()[encoded].sum() == len(SAMPLE)


@given(text=st.text())
def test_any_text_comes_back_from_bytes_and_byte_pairs(known: dict[str, tokens.Tokens], text: str) -> None:
    for kind in ("bytes", "bpe"):
        assert known[kind].decode(known[kind].encode(text.encode(), "text")) == text.encode()


@given(text=st.text(min_size=1))
def test_any_alphabet_can_be_learned(text: str) -> None:
    vocabulary = tokens.learned("characters", [text.encode()], 0, "text")
    assert vocabulary.size == len(set(text))
    assert vocabulary.decode(vocabulary.encode(text.encode(), "text")) == text.encode()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_as_json_is_the_same_vocabulary(known: dict[str, tokens.Tokens], kind: str) -> None:
    again = tokens.from_plain(json.loads(json.dumps(known[kind].plain())))
    np.testing.assert_array_equal(again.encode(SAMPLE, "text"), known[kind].encode(SAMPLE, "text"))
    assert again.size == known[kind].size


def test_byte_pairs_of_a_long_text_are_those_of_the_library_at_once(known: dict[str, tokens.Tokens]) -> None:
    """We hand it over in pieces; no token crosses them."""
    text = SAMPLE * 3000
    at_once = known["bpe"].library.encode(text.decode()).ids  # type: ignore[attr-defined]
    np.testing.assert_array_equal(known["bpe"].encode(text, "text"), at_once)


def test_an_unknown_character_is_named_with_its_position(known: dict[str, tokens.Tokens]) -> None:
    with pytest.raises(UserError, match=r"^stage\.prompt: the character 'Z' at 5 is not among the \d+ that the model"):
        known["characters"].encode(b"Call Zoe", "stage.prompt")


@pytest.mark.parametrize("kind", ["characters", "bpe"])
def test_text_that_is_not_utf8_says_where(kind: str) -> None:
    with pytest.raises(UserError) as refused:
        tokens.learned(kind, [b"one\ntwo \xff"], 300, "dataset=text")
    assert str(refused.value) == (
        "dataset=text: not UTF-8 at byte 8 (line 2): 0xff; dataset.tokens=bytes takes any file"
    )


def test_a_vocabulary_smaller_than_the_bytes_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"^dataset\.vocabulary=256: the 256 bytes are tokens already; give 257 or more"
    ):
        tokens.learned("bpe", [SAMPLE], 256, "dataset=text")


@pytest.mark.parametrize(("size", "dtype"), [(1, "u1"), (256, "u1"), (257, "u2"), (65_536, "u2"), (65_537, "u4")])
def test_tokens_take_no_more_bytes_than_their_number_needs(size: int, dtype: str) -> None:
    assert tokens.smallest(size) == dtype
    assert int(np.array(size - 1, dtype)) == size - 1
