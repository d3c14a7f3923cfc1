from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from extproc.openai.usage import Usage, UsageReader


def read(*members: str) -> Usage | None:
    reader = UsageReader()
    for member in members:
        reader.read(Raw(member.encode()))
    return reader.usage


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([], None),
        (['{"prompt_tokens":3,"total_tokens":7,"completion_tokens":4}'], Usage(3, 4)),
        (['{"input_tokens":3,"output_tokens":4}'], Usage(3, 4)),
        # In every chunk: the last wins, and what says nothing takes nothing away.
        (
            ['{"prompt_tokens":3,"completion_tokens":1}', '{"completion_tokens":2}', "null", ""],
            Usage(3, 2),
        ),
        (['{"input_tokens":3,"output_tokens":0}', '{"output_tokens":9}'], Usage(3, 9)),
        # Odd types.
        (['{"prompt_tokens":"3","completion_tokens":4.0}'], Usage(3, 4)),
        (['{"prompt_tokens":3,"completion_tokens":-4}'], Usage(3, 0)),
        (['{"prompt_tokens":null,"completion_tokens":4.5}'], None),
        (['{"prompt_tokens":true,"completion_tokens":false}'], None),
        (['{"prompt_tokens":[],"completion_tokens":{"a":1}}'], None),
        (['{"prompt_tokens":NaN}'], None),
        (['{"prompt_tokens":1e999,"completion_tokens":1' + "0" * 400 + "}"], None),
        (["3"], None),
        (['"usage"'], None),
        (["[]"], None),
    ],
)
def test_what_engines_report(members: list[str], expected: Usage | None) -> None:
    assert read(*members) == expected


@given(
    st.lists(st.text(max_size=20) | st.sampled_from(['{"prompt_tokens":', "9", "}", "[" * 9999]))
)
def test_whatever_comes_is_no_error(members: list[str]) -> None:
    read(*[member.encode(errors="replace").decode() for member in members])
    read("".join(members).encode(errors="replace").decode())
