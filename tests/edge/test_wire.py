"""The wire format, checked against an independent protobuf implementation (betterproto)."""

from __future__ import annotations

from typing import Any

import pytest
from envoy_data_plane.envoy.config.core.v3 import HeaderMap, HeaderValue, Metadata
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ProcessingMode,
    ProcessingModeBodySendMode,
    ProcessingModeHeaderSendMode,
)
from envoy_data_plane.envoy.service.ext_proc.v3 import (
    HttpBody,
    HttpHeaders,
    HttpTrailers,
    ProcessingRequest,
    ProcessingResponse,
)
from envoy_data_plane.google.protobuf import Struct
from google.protobuf import struct_pb2
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from extproc.edge import wire
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


def decode(message: ProcessingRequest) -> Event:
    return wire.decode(wire.parse(bytes(message)))


def encode(reply: Reply) -> ProcessingResponse:
    return ProcessingResponse.parse(wire.encode(reply))


def struct(members: dict[str, Any]) -> Struct:
    """Return a betterproto Struct; its own from_dict makes plain Python values of members."""
    plain = struct_pb2.Struct()
    plain.update(members)
    return Struct.parse(plain.SerializeToString())


def test_a_body_with_attributes() -> None:
    event = decode(
        ProcessingRequest(
            request_body=HttpBody(body=b'{"model":"q"}', end_of_stream=True),
            attributes={
                "envoy.filters.http.ext_proc": struct(
                    {
                        "request.path": "/v1/chat/completions?x=1",
                        "request.id": "r1",
                        "request.headers['x-tenant-id']": "pay",
                        "request.headers['authorization']": "Bearer k",
                        "another.attribute": "ignored",
                    }
                )
            },
        )
    )

    assert event == Event(
        Phase.REQUEST_BODY,
        headers={"x-tenant-id": "pay", "authorization": "Bearer k"},
        path="/v1/chat/completions?x=1",
        request_id="r1",
        body=b'{"model":"q"}',
        end_of_stream=True,
    )


def test_headers_raw_or_not_and_doubled() -> None:
    event = decode(
        ProcessingRequest(
            request_headers=HttpHeaders(
                headers=HeaderMap(
                    headers=[
                        HeaderValue(key=":path", raw_value=b"/v1/messages"),
                        HeaderValue(key="x-request-id", value="r2"),
                        HeaderValue(key="x-tenant-id", raw_value=b"pay"),
                        HeaderValue(key="x-tenant-id", raw_value=b"marketing"),
                        HeaderValue(key="x-odd", raw_value=b"\xff"),
                    ]
                ),
                end_of_stream=True,
            )
        )
    )

    assert event.phase is Phase.REQUEST_HEADERS
    assert (event.path, event.request_id, event.end_of_stream) == ("/v1/messages", "r2", True)
    assert event.headers["x-tenant-id"] == "pay,marketing"
    assert event.headers["x-odd"] == "\N{REPLACEMENT CHARACTER}"


def test_metadata_of_other_filters_becomes_plain_values() -> None:
    claims = {"payload": {"tenant": "pay", "n": 1.5, "on": True, "none": None, "list": ["a", {}]}}

    event = decode(
        ProcessingRequest(
            request_body=HttpBody(),
            metadata_context=Metadata(
                filter_metadata={"envoy.filters.http.jwt_authn": struct(claims)}
            ),
        )
    )

    assert event.metadata == {"envoy.filters.http.jwt_authn": claims}


@pytest.mark.parametrize(
    ("message", "phase"),
    [
        (ProcessingRequest(request_trailers=HttpTrailers()), Phase.REQUEST_TRAILERS),
        (ProcessingRequest(response_headers=HttpHeaders()), Phase.RESPONSE_HEADERS),
        (ProcessingRequest(response_body=HttpBody(body=b"x")), Phase.RESPONSE_BODY),
        (ProcessingRequest(response_trailers=HttpTrailers()), Phase.RESPONSE_TRAILERS),
    ],
)
def test_every_phase_is_read(message: ProcessingRequest, phase: Phase) -> None:
    assert decode(message).phase is phase


def test_a_message_of_no_known_kind_is_a_declared_error() -> None:
    with pytest.raises(wire.UnknownPhaseError, match="unknown kind: None"):
        decode(ProcessingRequest())


@pytest.mark.parametrize("phase", list(Phase))
def test_continue_is_of_its_own_phase(phase: Phase) -> None:
    reply = encode(Continue(phase))

    assert getattr(reply, phase.value) is not None
    others = [other for other in Phase if other is not phase]
    assert all(getattr(reply, other.value) is None for other in others)


def test_after_request_headers_we_ask_for_the_whole_body() -> None:
    override = encode(Continue(Phase.REQUEST_HEADERS)).mode_override

    assert override is not None
    assert override.request_body_mode.name == "BUFFERED"
    assert override.response_header_mode.name == "SEND"


def test_forward_unchanged_changes_nothing() -> None:
    reply = encode(Forward())

    assert reply.request_body is not None
    common = reply.request_body.response
    assert common is not None
    assert common.body_mutation is None
    assert common.header_mutation is None
    assert not common.clear_route_cache
    assert reply.dynamic_metadata is None


def test_forward_with_everything() -> None:
    reply = encode(
        Forward(
            body=b"{}",
            set_headers=(("content-length", "2"), ("x-tidegate-pool", "q")),
            clear_route=True,
            metadata=(("id", "x1"), ("tenant", "支付")),
        )
    )

    assert reply.request_body is not None
    common = reply.request_body.response
    assert common is not None
    assert common.body_mutation is not None
    assert common.body_mutation.body == b"{}"
    assert common.clear_route_cache
    mutation = common.header_mutation
    assert mutation is not None
    assert [(h.header.key, h.header.raw_value) for h in mutation.set_headers if h.header] == [
        ("content-length", b"2"),
        ("x-tidegate-pool", b"q"),
    ]
    assert {h.append_action.name for h in mutation.set_headers} == {"OVERWRITE_IF_EXISTS_OR_ADD"}
    metadata = struct_pb2.Struct.FromString(bytes(reply.dynamic_metadata or Struct()))
    assert MessageToDict(metadata) == {"tidegate": {"id": "x1", "tenant": "支付"}}


def test_the_picked_endpoint_is_told_to_the_balancer() -> None:
    reply = encode(Forward(metadata=(("id", "x1"),), endpoint="10.0.0.1:8000"))

    metadata = struct_pb2.Struct.FromString(bytes(reply.dynamic_metadata or Struct()))
    assert MessageToDict(metadata) == {
        "tidegate": {"id": "x1"},
        "envoy.lb": {"tidegate-endpoint": "10.0.0.1:8000"},
    }


def test_the_engine_that_answers_comes_with_the_responses_headers() -> None:
    told = {"upstream.address": "10.0.0.1:8000", "response.code_details": "via_upstream"}
    message = ProcessingRequest(
        response_headers=HttpHeaders(), attributes={"envoy.filters.http.ext_proc": struct(told)}
    )

    event = decode(message)
    assert (event.upstream, event.details) == ("10.0.0.1:8000", "via_upstream")


def test_a_replaced_body_may_be_empty() -> None:
    reply = encode(Forward(body=b""))

    assert reply.request_body is not None
    common = reply.request_body.response
    assert common is not None
    assert common.body_mutation is not None
    assert common.body_mutation.body == b""


def test_an_answer() -> None:
    reply = encode(
        Answer(429, (("content-type", "application/json"),), b'{"error":{}}', (("reason", "kv"),))
    )

    immediate = reply.immediate_response
    assert immediate is not None
    assert immediate.status is not None
    assert immediate.status.code.value == 429
    assert immediate.body == b'{"error":{}}'
    assert immediate.headers is not None
    assert [
        (h.header.key, h.header.raw_value) for h in immediate.headers.set_headers if h.header
    ] == [("content-type", b"application/json")]


def test_labels_on_the_response() -> None:
    reply = encode(LabelResponse((("x-tidegate-verdict", "admit"),)))

    assert reply.response_headers is not None
    common = reply.response_headers.response
    assert common is not None
    assert common.header_mutation is not None
    headers = common.header_mutation.set_headers
    assert [(h.header.key, h.header.raw_value) for h in headers if h.header] == [
        ("x-tidegate-verdict", b"admit")
    ]


def test_a_response_that_is_edited_is_asked_for_with_its_labels() -> None:
    reply = encode(LabelResponse((("x-a", "1"),), stream=True))

    assert reply.response_headers is not None
    assert reply.response_headers.response is not None
    assert reply.response_headers.response.header_mutation is not None
    (option,) = reply.response_headers.response.header_mutation.set_headers
    assert option.header is not None
    assert option.header.raw_value == b"1"
    assert reply.mode_override == ProcessingMode(
        response_header_mode=ProcessingModeHeaderSendMode.SEND,
        request_body_mode=ProcessingModeBodySendMode.BUFFERED,
        response_body_mode=ProcessingModeBodySendMode.FULL_DUPLEX_STREAMED,
    )
    assert encode(LabelResponse((("x-a", "1"),))).mode_override is None


@pytest.mark.parametrize("end", [False, True])
def test_a_part_of_a_response(end: bool) -> None:
    reply = encode(Stream(b"data: {}\n\n", end_of_stream=end))

    assert reply.response_body is not None
    assert reply.response_body.response is not None
    mutation = reply.response_body.response.body_mutation
    assert mutation is not None
    assert mutation.streamed_response is not None
    assert mutation.streamed_response.body == b"data: {}\n\n"
    assert mutation.streamed_response.end_of_stream is end
    assert reply.mode_override is None, "an override in the reply to a body is ignored"


def test_labels_that_no_other_response_has_come_after_those_that_repeat() -> None:
    repeated = (("x-tidegate-verdict", "admit"),)
    left = [
        encode(
            LabelResponse(
                repeated, unique_headers=(("x-ratelimit-remaining-requests", str(number)),)
            )
        )
        for number in (58, 59)
    ]

    told = [reply.to_dict()["responseHeaders"]["response"]["headerMutation"] for reply in left]
    assert [len(each["setHeaders"]) for each in told] == [2, 2]
    assert told[0] != told[1]


def test_envoy_is_asked_to_wait_longer() -> None:
    assert encode(Extend(135.5)).to_dict() == {"overrideMessageTimeout": "135.500s"}


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_are_an_event_or_declared_to_be_none(raw: bytes) -> None:
    message = wire.parse(raw)
    if message is None:
        return
    try:
        event = wire.decode(message)
    except wire.UnknownPhaseError:
        return
    assert isinstance(event, Event)
