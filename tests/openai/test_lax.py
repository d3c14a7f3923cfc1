from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw
from pydantic import TypeAdapter, ValidationError

from extproc.openai import lax
from extproc.openai.lax import Unreadable

ENGINE_INTEGER: TypeAdapter[int | None] = TypeAdapter(int | None)
ENGINE_BOOLEAN: TypeAdapter[bool | None] = TypeAdapter(bool | None)


@pytest.mark.parametrize(
    ("literal", "expected"),
    [
        (b"", None),
        (b"null", None),
        (b"5", 5),
        (b"-5", -5),
        (b"-0", 0),
        (b"5.0", 5),
        (b"1e3", 1000),
        (b"true", 1),
        (b'"5"', 5),
        (b'" 5\\n"', 5),
        (b'"+5"', 5),
        (b'"1_000"', 1000),
        (b'"010"', 10),
        (b'"5.00"', 5),
        (b"9223372036854775807", 9223372036854775807),
        (b'"-9223372036854775807"', -9223372036854775807),
    ],
)
def test_integers_as_the_engine_sees_them(literal: bytes, expected: int | None) -> None:
    assert lax.integer(Raw(literal), "n") == expected


@pytest.mark.parametrize(
    "literal", [b"5.5", b'"5e3"', b'"0x10"', b'"five"', b"1e999", b"NaN", b"[5]", b'{"a":1}', b'""']
)
def test_no_integers(literal: bytes) -> None:
    with pytest.raises(Unreadable, match=r"^n must be an integer\.$") as caught:
        lax.integer(Raw(literal), "n")
    assert caught.value.param == "n"


@pytest.mark.parametrize(
    ("literal", "message"),
    [
        (b"9" * 5000, "n cannot be read."),
        (b'"' + b"9" * 5000 + b'"', "n is out of range."),
        (b"9223372036854775808", "n is out of range."),
        (b"-9223372036854775808", "n is out of range."),
        (b'"9_223_372_036_854_775_808"', "n is out of range."),
        (b"1" + b"0" * 400, "n is out of range."),
        (b"1e300", "n is out of range."),
        (b'"' + b" " * 70_000 + b'5"', "n is too long."),
        (b"[" * 20_000 + b"]" * 20_000, "n cannot be read."),
        (b'"\xff"', "n cannot be read."),
    ],
)
def test_values_that_nobody_should_read(literal: bytes, message: str) -> None:
    with pytest.raises(Unreadable) as caught:
        lax.integer(Raw(literal), "n")
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("literal", "expected"),
    [
        (b"", False),
        (b"null", False),
        (b"false", False),
        (b"true", True),
        (b"1", True),
        (b"0.0", False),
        (b'"YES"', True),
        (b'"off"', False),
    ],
)
def test_booleans_as_the_engine_sees_them(literal: bytes, expected: bool) -> None:
    assert lax.boolean(Raw(literal), "stream") is expected


@pytest.mark.parametrize("literal", [b"2", b"0.5", b'" true"', b"[]", b"{}"])
def test_no_booleans(literal: bytes) -> None:
    with pytest.raises(Unreadable, match=r"^stream must be a boolean\.$"):
        lax.boolean(Raw(literal), "stream")


def test_texts() -> None:
    assert lax.text(Raw(b""), "model") == ""
    assert lax.text(Raw(b"null"), "model") == ""
    assert lax.text(Raw('"通义"'.encode()), "model") == "通义"
    assert lax.text(Raw(b'"a\\u002fb"'), "model") == "a/b"
    assert lax.text(Raw(b'"' + b"x" * 300 + b'"'), "model") == "x" * 300
    assert lax.hint(Raw(b'"alice"')) == "alice"
    assert lax.hint(Raw(b"7")) == ""


@pytest.mark.parametrize("literal", [b"5", b"[]", b'"\\ud800"'])
def test_no_texts(literal: bytes) -> None:
    with pytest.raises(Unreadable, match=r"^model must be a string\.$"):
        lax.text(Raw(literal), "model")


JSON_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.from_regex(r"\s*[+-]?[0-9_.٣e]{1,8}\s*", fullmatch=True)
    | st.sampled_from(["True", "t", "Y", "on", "01", "no", " yes"])
    | st.text(max_size=6)
)


@given(JSON_SCALARS)
@example("1_0.0")
@example(1e30)
def test_the_engine_never_sees_another_number(value: Any) -> None:
    try:
        seen = ENGINE_INTEGER.validate_python(value)
    except ValidationError:
        return
    literal = Raw(json.dumps(value).encode())
    if seen is None or abs(seen) < 2**63:
        assert lax.integer(literal, "n") == seen
    else:
        with pytest.raises(Unreadable, match=r"^n is out of range\.$"):
            lax.integer(literal, "n")


@given(JSON_SCALARS)
def test_the_engine_never_sees_another_boolean(value: Any) -> None:
    try:
        seen = ENGINE_BOOLEAN.validate_python(value)
    except ValidationError:
        return
    assert lax.boolean(Raw(json.dumps(value).encode()), "stream") is bool(seen)
