"""Between the control API's messages and JSON.

Rules this module keeps:

* JSON in is protobuf's own JSON mapping; what no field takes is refused, not passed over.
* JSON out has the fields' names as in the protos, times in RFC 3339, enums by name, ``null`` where an
  optional field is absent, and numbers as numbers: no count of ours comes near 2**53.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

M = TypeVar("M", bound=Message)


class UnreadableRequestError(ValueError):
    """The JSON is not of this message; the text says where."""


def read(data: dict[str, Any], message: M) -> M:
    """Fill a message from JSON and return it.

    Raises:
        UnreadableRequestError: a field is not there or cannot hold this.
    """
    try:
        return ParseDict(data, message)
    except ParseError as error:
        raise UnreadableRequestError(str(error)) from None


def plain(message: Message) -> dict[str, Any]:
    """Return a message as JSON's values."""
    fields: Sequence[FieldDescriptor] = message.DESCRIPTOR.fields  # type: ignore[assignment]
    return {field.name: _field(message, field) for field in fields}


def _field(message: Message, field: FieldDescriptor) -> Any:
    if field.has_presence and not message.HasField(field.name):
        return None
    value = getattr(message, field.name)
    if field.is_repeated:
        return [_value(each, field) for each in value]
    return _value(value, field)


def _value(value: Any, field: FieldDescriptor) -> Any:
    if isinstance(value, Timestamp):
        return value.ToJsonString()
    if isinstance(value, Message):
        return plain(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    return value
