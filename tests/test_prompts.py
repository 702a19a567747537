"""A prompt or a stop text on the command line is taken as it is written, whatever Hydra's grammar makes of it."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pipeline.cli.for_hydra import prose_as_text


@pytest.mark.parametrize("key", ["stage.prompt", "stage.samples.prompt", "stage.stop"])
@given(text=st.text(st.characters(exclude_categories=["C"], exclude_characters="$"), min_size=1))
@example("Hello, world")
@example("I don't know")
@example("a backslash \\ and one before a quote \\'")
@example("ends in one \\")
@example("42")
@example("space behind ")
def test_a_prompt_is_taken_as_it_is_written(key: str, text: str) -> None:
    assume(text != "null" and text[0] not in "'\"[")
    (override,) = OverridesParser.create().parse_overrides([prose_as_text(f"{key}={text}")])
    assert override.value() == text and isinstance(override.value(), str)


def test_a_prompt_with_quotes_or_in_a_list_is_left_as_it_is() -> None:
    for given_as in ("stage.prompt='a, b'", "stage.prompt=[Call me,S]", "stage.prompt=null", "name=a,b"):
        assert prose_as_text(given_as) == given_as
