"""The protobuf of ext_proc: bytes to events, replies to bytes. The only place that knows it.

Rules this module keeps:

* Messages are read and written with the C implementation (upb); nothing is parsed twice.
* Replies, and parts of replies, that repeat are built once.
* Header values go out as ``raw_value``: Envoy ignores ``value`` where raw headers are in use.
* A field that newer Envoys added and our definitions misplace (11 of ``ProcessingResponse``) is
  never set.
* Envoy hands on whatever bytes a caller put into a header; protobuf knows text in UTF-8 only. Such a
  message is no fault of ours but the caller's: it is no error, it is ``None``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Struct

from extproc import contract
from extproc.edge.messages import (
    Answer,
    Continue,
    Event,
    Extend,
    Forward,
    LabelResponse,
    Phase,
    Reply,
    Stream,
)

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
METHOD = "Process"

_PHASES = {phase.value: phase for phase in Phase}
_HEADER_ATTRIBUTE = "request.headers['"
_OVERWRITE = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
_BUFFERED = processing_mode_pb2.ProcessingMode.BUFFERED
_SEND = processing_mode_pb2.ProcessingMode.SEND
_STREAMED = processing_mode_pb2.ProcessingMode.FULL_DUPLEX_STREAMED


class UnknownPhaseError(ValueError):
    """Envoy sent a message of a kind that this version does not know."""


def parse(raw: bytes) -> Any | None:
    """Return the ``ProcessingRequest`` that these bytes are, ``None`` where they are none."""
    try:
        return pb.ProcessingRequest.FromString(raw)
    except DecodeError:
        return None


def phase_of(message: Any) -> Phase | None:
    """Return the phase of a ``ProcessingRequest``, None where that is of no known kind."""
    return _PHASES.get(message.WhichOneof("request"))


def decode(message: Any) -> Event:
    """Return the event that a ``ProcessingRequest`` carries.

    Raises:
        UnknownPhaseError: the message is of no known kind.
    """
    kind = message.WhichOneof("request")
    phase = _PHASES.get(kind)
    if phase is None:
        raise UnknownPhaseError(f"ext_proc message of an unknown kind: {kind}")
    event = Event(phase)
    part = getattr(message, kind)
    if phase is Phase.REQUEST_BODY or phase is Phase.RESPONSE_BODY:
        event.body, event.end_of_stream = part.body, part.end_of_stream
    elif phase is Phase.REQUEST_HEADERS or phase is Phase.RESPONSE_HEADERS:
        headers = _headers(part.headers.headers)
        event.headers, event.end_of_stream = headers, part.end_of_stream
        event.path = headers.get(":path", "")
        event.request_id = headers.get("x-request-id", "")
    if message.attributes:
        _read_attributes(event, message.attributes)
    if message.HasField("metadata_context"):
        filters = message.metadata_context.filter_metadata
        event.metadata = {name: _plain(struct) for name, struct in filters.items()}
    return event


def _headers(pairs: Any) -> dict[str, str]:
    headers: dict[str, str] = {}
    for pair in pairs:
        value = pair.raw_value.decode("utf-8", "replace") or pair.value
        known = headers.get(pair.key)
        headers[pair.key] = value if known is None else f"{known},{value}"
    return headers


def _read_attributes(event: Event, attributes: Any) -> None:
    headers = dict(event.headers)
    for struct in attributes.values():
        for name, value in struct.fields.items():
            text = value.string_value
            header = _header(name)
            if header is not None:
                headers[header] = text
            elif name == contract.PATH:
                event.path = text
            elif name == contract.REQUEST_ID:
                event.request_id = text
            elif name == contract.UPSTREAM:
                event.upstream = text
            elif name == contract.DETAILS:
                event.details = text
    event.headers = headers


@lru_cache(maxsize=256)
def _header(attribute: str) -> str | None:
    """Return the header that an attribute is the value of."""
    is_header = attribute.startswith(_HEADER_ATTRIBUTE)
    return attribute[len(_HEADER_ATTRIBUTE) : -2] if is_header else None


def _plain(value: Any) -> object:
    """Return a ``Struct`` or ``Value`` as dicts, lists, strings, numbers."""
    if isinstance(value, Struct):
        return {name: _plain(member) for name, member in value.fields.items()}
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return _plain(value.struct_value)
    if kind == "list_value":
        return [_plain(member) for member in value.list_value.values]
    return None if kind in (None, "null_value") else getattr(value, kind)


def encode(reply: Reply) -> bytes:
    """Return the bytes of the ``ProcessingResponse`` that says this."""
    match reply:
        case Continue(phase):
            return _CONTINUE[phase]
        case LabelResponse(set_headers, stream, unique_headers):
            labels = _encode_labels(set_headers, stream)
            return _add_headers(labels, unique_headers) if unique_headers else labels
        case Stream(data, end_of_stream):
            return _encode_stream(data, end_of_stream)
        case Forward():
            return _encode_forward(reply)
        case Extend(seconds):
            return _encode_extension(seconds)
        case _:
            return _encode_answer(reply)


@lru_cache(maxsize=256)
def _encode_labels(set_headers: tuple[tuple[str, str], ...], stream: bool) -> bytes:
    response = pb.ProcessingResponse()
    response.response_headers.response.header_mutation.MergeFromString(_mutation(set_headers))
    if stream:
        # An override replaces the whole mode: what is not said anew is at its default.
        response.mode_override.request_body_mode = _BUFFERED
        response.mode_override.response_header_mode = _SEND
        response.mode_override.response_body_mode = _STREAMED
    return bytes(response.SerializeToString())


def _add_headers(labels: bytes, headers: tuple[tuple[str, str], ...]) -> bytes:
    response = pb.ProcessingResponse.FromString(labels)
    _set_headers(response.response_headers.response.header_mutation, headers)
    return bytes(response.SerializeToString())


def _encode_stream(data: bytes, end_of_stream: bool) -> bytes:
    response = pb.ProcessingResponse()
    streamed = response.response_body.response.body_mutation.streamed_response
    streamed.body = data
    streamed.end_of_stream = end_of_stream
    return bytes(response.SerializeToString())


def _encode_extension(seconds: float) -> bytes:
    response = pb.ProcessingResponse()
    response.override_message_timeout.FromNanoseconds(round(seconds * 1e9))
    return bytes(response.SerializeToString())


def _encode_forward(reply: Forward) -> bytes:
    response = pb.ProcessingResponse()
    common = response.request_body.response
    common.SetInParent()
    if reply.body is not None:
        common.body_mutation.body = reply.body
    if reply.set_headers:
        common.header_mutation.MergeFromString(_mutation(reply.set_headers))
    common.clear_route_cache = reply.clear_route
    _set_metadata(response, reply.metadata)
    if reply.endpoint is not None:
        balancer = response.dynamic_metadata.fields[contract.ENDPOINT_NAMESPACE].struct_value
        balancer.fields[contract.ENDPOINT_KEY].string_value = reply.endpoint
    return bytes(response.SerializeToString())


def _encode_answer(reply: Answer) -> bytes:
    response = pb.ProcessingResponse()
    immediate = response.immediate_response
    immediate.status.code = reply.status
    immediate.headers.MergeFromString(_mutation(reply.headers))
    _set_headers(immediate.headers, reply.unique_headers)
    immediate.body = reply.body
    _set_metadata(response, reply.metadata)
    return bytes(response.SerializeToString())


@lru_cache(maxsize=1024)
def _mutation(headers: tuple[tuple[str, str], ...]) -> bytes:
    """Return the bytes of the ``HeaderMutation`` that sets these headers."""
    mutation = pb.HeaderMutation()
    _set_headers(mutation, headers)
    return bytes(mutation.SerializeToString())


def _set_headers(mutation: Any, headers: tuple[tuple[str, str], ...]) -> None:
    for name, value in headers:
        option = mutation.set_headers.add(append_action=_OVERWRITE)
        option.header.key = name
        option.header.raw_value = value.encode()


def _set_metadata(response: Any, metadata: tuple[tuple[str, str], ...]) -> None:
    if metadata:
        (name, ident), *_ = metadata
        response.dynamic_metadata.MergeFromString(_namespaced(metadata[1:]))
        own = response.dynamic_metadata.fields[contract.NAMESPACE].struct_value
        own.fields[name].string_value = ident


@lru_cache(maxsize=4096)
def _namespaced(metadata: tuple[tuple[str, str], ...]) -> bytes:
    """Return the bytes of a ``Struct`` with these values under our namespace."""
    struct = Struct()
    own = struct.fields[contract.NAMESPACE].struct_value
    own.SetInParent()
    for name, value in metadata:
        own.fields[name].string_value = value
    return bytes(struct.SerializeToString())


def _build_continue() -> Mapping[Phase, bytes]:
    replies: dict[Phase, bytes] = {}
    for phase in Phase:
        response = pb.ProcessingResponse()
        getattr(response, phase.value).SetInParent()
        if phase is Phase.REQUEST_HEADERS:
            # Whatever the filter is set to, we need the whole body and the response's headers.
            response.mode_override.request_body_mode = _BUFFERED
            response.mode_override.response_header_mode = _SEND
        replies[phase] = bytes(response.SerializeToString())
    return replies


_CONTINUE = _build_continue()
