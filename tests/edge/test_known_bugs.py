"""What other gateways got wrong between Envoy and the processor; each test names where it was reported.

Those that only a real Envoy can show: `tests/e2e/test_bodies.py` (bodies over 128 KB, ``content-length`` after
a mutation), `test_waiting.py` (a body over 1 MB whose end comes twice), `test_early_stop.py` and
`test_faults.py` (clients that leave), `tests/envoyconf/test_through_envoy.py` (our own reply). Those of
streams: `tests/openai/streams/test_known_bugs.py`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from envoy.config.core.v3.base_pb2 import HeaderMap, HeaderValue
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from extproc import app
from extproc.config import parse
from extproc.edge import processor, wire
from extproc.edge.exchange import Exchange, Resolution, State
from extproc.edge.messages import Answer, Continue, Event, Phase, Stream

CHAT = "/v1/chat/completions"
FALLBACK = Event(Phase.RESPONSE_HEADERS, {":status": "200", "x-tidegate-verdict": "shed"})
KIB = 1 << 10
CONFIG = """
identity:
  sources:
    - header: {name: x-tenant-id, trusted: true}
    - header: {name: x-other, trusted: false}
tenants: {pay: {class: P0}, marketing: {class: P2}}
tasks: {extract: {stop_on: complete_json}}
pools: {qwen: {max_concurrency: 2, endpoints: {static: ["127.0.0.1:9"]}}}
"""
tidegate = app.build(parse(CONFIG))
tidegate.pools["qwen"].join("127.0.0.1:9")


def never(_resolution: Resolution) -> None:
    raise AssertionError("nothing waits here")


def test_our_own_immediate_reply_that_comes_back_through_the_response_phase_is_none_of_ours(
    gatekeeper: Any,
) -> None:
    """It was taken for an engine's (envoyproxy/ai-gateway#420)."""
    exchange = Exchange(gatekeeper, never)
    assert isinstance(exchange.receive(Event(Phase.REQUEST_BODY, body=b"s")), Answer)

    assert exchange.receive(FALLBACK) == Continue(Phase.RESPONSE_HEADERS)
    part = Event(Phase.RESPONSE_BODY, body=b"{}", end_of_stream=True)
    assert exchange.receive(part) == Continue(Phase.RESPONSE_BODY)

    assert exchange.state is State.ANSWERED
    assert (gatekeeper.answers, gatekeeper.released, len(gatekeeper.judged)) == ([], [], 1)


def test_an_end_of_stream_that_is_told_twice_ends_a_request_and_a_response_once(
    gatekeeper: Any,
) -> None:
    """Bodies over 1 MB (envoyproxy/envoy#46237, kubernetes-sigs/gateway-api-inference-extension#2988)."""
    exchange = Exchange(gatekeeper, never)
    request = Event(Phase.REQUEST_BODY, body=b"e" * (1 << 20), end_of_stream=True)
    exchange.receive(request)
    assert exchange.receive(request) == Continue(Phase.REQUEST_BODY)
    assert len(gatekeeper.judged) == 1

    exchange.receive(Event(Phase.RESPONSE_HEADERS, {":status": "200"}))
    last = Event(Phase.RESPONSE_BODY, body=b"x", end_of_stream=True)
    assert exchange.receive(last) == Stream(b"X", end_of_stream=True)
    assert exchange.receive(last) is None


@pytest.mark.parametrize("size", [128 * KIB - 1, 128 * KIB, 128 * KIB + 1, 1024 * KIB])
def test_a_mutated_body_goes_out_whole_with_its_own_length(size: int) -> None:
    """Over 128 KB it was a 500 (kubernetes-sigs/gateway-api-inference-extension#854)."""
    head, tail = b'{"max_tokens":9e9,"messages":[{"role":"user","content":"', b'"}]}'
    body = head + b"x" * (size - len(head) - len(tail)) + tail
    exchange = Exchange(tidegate.admission, never)

    message = pb.ProcessingRequest(request_body=_body(body))
    attributes = message.attributes["envoy.filters.http.ext_proc"]
    attributes.fields["request.path"].string_value = CHAT
    raw = processor._reply(exchange, message)

    assert raw is not None
    common = pb.ProcessingResponse.FromString(raw).request_body.response
    (length,) = common.header_mutation.set_headers
    sent = common.body_mutation.body
    assert (length.header.key, length.header.raw_value) == ("content-length", b"%d" % len(sent))
    assert json.loads(sent) == {**json.loads(body), "max_tokens": 2048}
    exchange.close()


NAMES = st.sampled_from(
    [
        *("x-tenant-id", "x-other", "authorization", "x-api-key", "x-task-type", "accept-language"),
        *("x-tidegate-ticket", "x-tidegate-class", "traceparent", "tracestate", "baggage"),
        *("x-agent-run-id", "x-agent-task-id", "x-agent-parent-id", "x-agent-depends-on"),
        *("x-agent-depth", "x-agent-merge", "content-encoding", ":path", "x-request-id", ""),
    ]
) | st.text(max_size=8)  # fmt: skip
VALUES = (
    st.sampled_from(["pay", "marketing", "pay,pay", "extract", "P0", "zh-CN;q=2,*", "1e9", "-1", CHAT])
    | st.text(max_size=30)
    | st.binary(max_size=30)
)  # fmt: skip
BODIES = st.sampled_from([b"", b"{}", b'{"messages": [], "stream": true}', b"[", b"\x1f\x8b\x00"])


@given(st.lists(st.tuples(NAMES, VALUES), max_size=12), BODIES, st.booleans())
def test_fuzz_header_lists(
    pairs: list[tuple[str, str | bytes]], body: bytes, attributes: bool
) -> None:
    """Whatever headers come, in a message or as attributes: one reply, nothing held, no fault."""
    resolutions: list[Resolution] = []
    exchange = Exchange(tidegate.admission, resolutions.append)
    message = pb.ProcessingRequest(request_body=_body(body))
    if attributes:
        fields = message.attributes["envoy.filters.http.ext_proc"].fields
        fields["request.path"].string_value = CHAT
        for name, value in pairs:
            text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
            fields[f"request.headers['{name}']"].string_value = text
    else:
        sent = [HeaderValue(key=":path", raw_value=CHAT.encode())]
        for name, value in pairs:
            raw = value if isinstance(value, bytes) else value.encode()
            sent.append(HeaderValue(key=name, raw_value=raw))
        headers = pb.ProcessingRequest(
            request_headers=pb.HttpHeaders(headers=HeaderMap(headers=sent))
        )
        assert said(exchange, headers) == "request_headers"

    reply = said(exchange, message)
    if reply is None:
        tidegate.admission.pump()
        assert exchange.state is State.WAITING
    exchange.close()

    assert reply in ("request_body", "immediate_response", None)
    assert tidegate.pools["qwen"].in_flight == 0
    assert not any(tidegate.admission._faults.counts.values())


def _body(body: bytes) -> Any:
    return pb.HttpBody(body=body, end_of_stream=True)


def said(exchange: Exchange, message: Any) -> str | None:
    raw = processor._reply(exchange, wire.parse(message.SerializeToString()))
    return None if raw is None else pb.ProcessingResponse.FromString(raw).WhichOneof("response")
