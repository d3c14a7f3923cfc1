"""The peers of a measurement: configuration, no-op processor, engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from envoy.service.ext_proc.v3.external_processor_pb2 import (
    ProcessingRequest,
    ProcessingResponse,
)

from bench import noop, stand, upstream
from extproc.config import parse
from extproc.engines import page
from extproc.envoyconf.bootstrap import bootstrap
from extproc.sim.loadgen.http_client import Answer, Response
from extproc.sim.loadgen.load import Kind, kind_of


def manager(edit: stand.Edit) -> dict[str, Any]:
    config = parse(stand.configuration(Path("/run/x.sock"), engine=8000))
    document = yaml.safe_load(stand.edited(bootstrap(config), edit))
    filters = document["static_resources"]["listeners"][0]["filter_chains"][0]["filters"]
    return dict(filters[0]["typed_config"])


def ext_proc(edit: stand.Edit) -> dict[str, Any]:
    [found] = [each for each in manager(edit)["http_filters"] if each["name"] == "tidegate"]
    return dict(found["typed_config"])


def test_the_subject_runs_what_tidegate_generates() -> None:
    generated = ext_proc(stand.unchanged)
    assert generated["processing_mode"]["request_header_mode"] == "SKIP"
    assert "request.headers['x-tenant-id']" in generated["request_attributes"]
    # Failing closed, so that an exchange that passed by the processor is an error.
    assert not generated.get("failure_mode_allow", False)


def test_three_messages_differ_in_nothing_else() -> None:
    generated, changed = ext_proc(stand.unchanged), ext_proc(stand.send_headers)
    assert changed["processing_mode"].pop("request_header_mode") == "SEND"
    del generated["processing_mode"]["request_header_mode"]
    del generated["request_attributes"]
    assert changed == generated


def test_envoy_alone_has_none_of_our_filters() -> None:
    alone = manager(stand.without_tidegate)
    assert [each["name"] for each in alone["http_filters"]] == ["envoy.filters.http.router"]
    assert "access_log" not in alone
    assert alone["route_config"] == manager(stand.unchanged)["route_config"]


def test_no_op_lets_pass_and_has_its_exchanges_logged() -> None:
    replies = {kind: ProcessingResponse.FromString(data) for kind, data in noop.admitting().items()}
    assert {kind: reply.WhichOneof("response") for kind, reply in replies.items()} == {
        "request_headers": "request_headers",
        "request_body": "request_body",
        "response_headers": "response_headers",
    }
    ours = replies["request_body"].dynamic_metadata.fields["tidegate"].struct_value.fields
    assert ours["verdict"].string_value == "admit"


def test_no_op_answers_with_a_fallback() -> None:
    reply = ProcessingResponse.FromString(noop.shedding()["request_body"])
    immediate = reply.immediate_response
    assert immediate.status.code == 200
    assert kind_of(Answer(200, immediate.body, 0.0, 0.0)) is Kind.FALLBACK
    ours = reply.dynamic_metadata.fields["tidegate"].struct_value.fields
    assert ours["verdict"].string_value == "shed"


def test_metrics_page_is_as_long_as_a_real_one_and_says_nearly_full() -> None:
    text = upstream.metrics_page().encode()
    assert 45_000 < len(text) < 60_000
    (reading,) = page.parse(text).values()
    assert (reading.kv_usage, reading.blocks, reading.block_size) == (0.9, 40_000, 16)


def test_both_codecs_of_the_no_op_read_what_envoy_sends() -> None:
    message = ProcessingRequest()
    message.request_body.body = b"{}"
    for codec in (noop.UPB, noop.betterproto()):
        assert codec.kind(codec.parse(message.SerializeToString())) == "request_body"
        codec.parse_log(b"")


def test_more_replaces_keys_of_a_section() -> None:
    more = {"tenants": {"pay": {"class": "P1"}}}
    config = parse(stand.configuration(Path("/run/x.sock"), engine=8000, more=more))
    assert {name: each.class_ for name, each in config.tenants.items()} == {
        "pay": "P1",
        "marketing": "P2",
    }


def test_an_engine_says_of_itself_what_it_is_told() -> None:
    settings = upstream.Settings(used=0.25, blocks=7)
    (reading,) = page.parse(upstream.metrics_page(settings).encode()).values()
    assert (reading.kv_usage, reading.blocks) == (0.25, 7)


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data


CHUNKED = (
    b"POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
)
SIZED = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize("request_bytes", [CHUNKED, SIZED])
def test_engine_answers_once_the_request_is_there(request_bytes: bytes) -> None:
    wire, engine = Wire(), upstream.Engine()
    engine.connection_made(wire)
    engine.data_received(request_bytes[:20])
    engine.data_received(request_bytes[20:-1])
    assert wire.written == b""
    engine.data_received(request_bytes[-1:])
    response = Response()
    response.feed(wire.written)
    assert response.complete
    assert kind_of(Answer(response.status, response.body, 0.0, 0.0)) is Kind.ENGINE


@pytest.mark.parametrize(("path", "start"), [("/metrics", b"vllm:"), ("/health", b"")])
def test_engine_pages(path: str, start: bytes) -> None:
    wire, engine = Wire(), upstream.Engine()
    engine.connection_made(wire)
    engine.data_received(f"GET {path} HTTP/1.1\r\nhost: engine\r\n\r\n".encode())
    response = Response()
    response.feed(wire.written)
    assert (response.status, response.body[:5]) == (200, start)
