"""Checks the fields of a JSON body and words what is wrong as vLLM 0.32 does.

Rules this module keeps:

* Pure. A body comes out with exactly the fields that its schema names, converted, or as a
  ``RefusedError`` that lists every problem.
* Conversions are pydantic's lax ones: ``"5"`` and ``5.0`` are integers, ``"true"`` is a boolean.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

INVALID = "Bad Request"
"""Error type of a body that is not what the endpoint's schema says."""
INT64_MAX = 2**63 - 1


class RefusedError(Exception):
    """The request is answered with an error.

    Attributes:
        status: HTTP status.
        kind: vLLM's error type, for example ``BadRequestError``.
        message: text for the caller.
        param: the field in question, if there is one.
    """

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.param = param


class _ProblemError(Exception):
    """One field is wrong: pydantic's type of error, its text, and the bounds that it names."""

    def __init__(self, kind: str, text: str, bounds: Mapping[str, object] | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.bounds = bounds


def integer(value: object) -> int:
    """Accept an integer of any size."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if value.is_integer():
            return int(value)
        text = "Input should be a valid integer, got a number with a fractional part"
        raise _ProblemError("int_from_float", text)
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            text = "Input should be a valid integer, unable to parse string as an integer"
            raise _ProblemError("int_parsing", text) from None
    raise _ProblemError("int_type", "Input should be a valid integer")


def int64(value: object) -> int:
    """Accept an integer of 64 bits."""
    number = integer(value)
    if number > INT64_MAX:
        text = f"Input should be less than or equal to {INT64_MAX}"
        raise _ProblemError("less_than_equal", text, {"le": INT64_MAX})
    if number < -INT64_MAX - 1:
        text = f"Input should be greater than or equal to {-INT64_MAX - 1}"
        raise _ProblemError("greater_than_equal", text, {"ge": -INT64_MAX - 1})
    return number


_TRUE = frozenset({"true", "1", "yes", "on", "t", "y"})
_FALSE = frozenset({"false", "0", "no", "off", "f", "n"})


def boolean(value: object) -> bool:
    """Accept a boolean, or a number or word for one."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str | int):
        word = str(value).lower()
        if word in _TRUE or word in _FALSE:
            return word in _TRUE
        text = "Input should be a valid boolean, unable to interpret input"
        raise _ProblemError("bool_parsing", text)
    raise _ProblemError("bool_type", "Input should be a valid boolean")


def _instance(wanted: type, kind: str, text: str, value: object) -> object:
    if isinstance(value, wanted):
        return value
    raise _ProblemError(kind, text)


string = partial(_instance, str, "string_type", "Input should be a valid string")
array = partial(_instance, list, "list_type", "Input should be a valid list")
mapping = partial(_instance, dict, "dict_type", "Input should be a valid dictionary")


def anything(value: object) -> object:
    """Accept any value."""
    return value


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a body.

    Attributes:
        convert: the value as it will be used, or an error.
        required: whether it must be there.
        nullable: whether null stands for its absence.
    """

    convert: Callable[[object], object]
    required: bool = False
    nullable: bool = True


Schema = Mapping[str, Field]


def read_json(body: bytes) -> Any:
    """Parse a body.

    Raises:
        RefusedError: it is empty or not JSON.
    """
    if not body:
        raise missing("body", None)
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        problem = _ProblemError("json_invalid", "JSON decode error", {"error": error.msg})
        raise _invalid([(f"body.{error.pos}", problem, {})]) from error
    except (ValueError, RecursionError) as error:  # not UTF-8, an endless number, or too deep
        raise RefusedError(400, INVALID, "There was an error parsing the body") from error


def read_fields(schema: Schema, body: bytes) -> dict[str, Any]:
    """Parse a body and check its fields.

    Returns:
        The fields of the schema that are given and not null.

    Raises:
        RefusedError: it is not an object, or some fields are wrong.
    """
    given = read_json(body)
    if not isinstance(given, dict):
        text = "Input should be a valid dictionary or object to extract fields from"
        raise _invalid([("body", _ProblemError("model_attributes_type", text), given)])
    fields: dict[str, Any] = {}
    problems: list[tuple[str, _ProblemError, object]] = []
    for name, field in schema.items():
        place = f"body.{name}"
        if name not in given:
            if field.required:
                problems.append((place, _ProblemError("missing", "Field required"), given))
        elif given[name] is not None or not field.nullable:
            try:
                fields[name] = field.convert(given[name])
            except _ProblemError as problem:
                problems.append((place, problem, given[name]))
    if problems:
        raise _invalid(problems)
    return fields


def missing(place: str, within: object) -> RefusedError:
    """Return the error for a required field, for example ``body.prompt``, that is not there."""
    return _invalid([(place, _ProblemError("missing", "Field required"), within)])


def bad_value(param: str, value: object, message: str) -> RefusedError:
    """Return the error for a value of the right type that cannot be served; None: not shown."""
    shown = f"(parameter={param}, value={value})" if value is not None else f"(parameter={param})"
    return RefusedError(400, "BadRequestError", f"{message} {shown}", param)


def _invalid(problems: Sequence[tuple[str, _ProblemError, object]]) -> RefusedError:
    lines: list[str] = []
    for place, problem, value in problems:
        shown: dict[str, object] = {
            "type": problem.kind,
            "loc": place,
            "msg": problem.text,
            "input": _summary(value),
        }
        if problem.bounds is not None:
            shown["ctx"] = problem.bounds
        lines.append(f"  {shown}")
    head = f"{len(problems)} validation error{'s' if len(problems) > 1 else ''}:"
    return RefusedError(400, INVALID, "\n".join((head, *lines)), problems[0][0])


def _summary(value: object) -> str:
    """Show a value as vLLM does: containers by their size."""
    if isinstance(value, dict | list):
        return f"<{type(value).__name__} of {len(value)} items>"
    return str(value)
