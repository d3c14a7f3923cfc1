"""What Envoy's access log says about the end of an exchange."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from envoy.service.accesslog.v3 import als_pb2
from envoy_data_plane.envoy.config.core.v3 import Metadata
from envoy_data_plane.envoy.data.accesslog.v3 import (
    AccessLogCommon,
    HttpAccessLogEntry,
    HttpResponseProperties,
    ResponseFlags,
)
from envoy_data_plane.envoy.service.accesslog.v3 import (
    StreamAccessLogsMessage,
    StreamAccessLogsMessageHttpAccessLogEntries,
)
from envoy_data_plane.google.protobuf import Struct
from google.protobuf import struct_pb2

from extproc.core.outcomes import Outcome
from extproc.core.records import Ended
from extproc.edge.access_log import read

OWN = {"id": "x1", "tenant": "pay", "class": "P0", "pool": "qwen"}


def struct(members: dict[str, Any]) -> Struct:
    plain = struct_pb2.Struct()
    plain.update(members)
    return Struct.parse(plain.SerializeToString())


def entry(
    own: dict[str, Any] | None = None,
    usage: dict[str, Any] | None = None,
    status: int = 200,
    flags: ResponseFlags | None = None,
) -> HttpAccessLogEntry:
    metadata = {"tidegate": struct(OWN if own is None else own)}
    if usage is not None:
        metadata["tidegate.usage"] = struct(usage)
    return HttpAccessLogEntry(
        common_properties=AccessLogCommon(
            metadata=Metadata(filter_metadata=metadata),
            response_flags=flags or ResponseFlags(),
            time_to_last_downstream_tx_byte=timedelta(milliseconds=1500),
        ),
        response=HttpResponseProperties(response_code=status),
    )


def told(*entries: HttpAccessLogEntry) -> list[Ended]:
    message = StreamAccessLogsMessage(
        http_logs=StreamAccessLogsMessageHttpAccessLogEntries(log_entry=list(entries))
    )
    return list(read(als_pb2.StreamAccessLogsMessage.FromString(bytes(message))))


def test_a_completed_exchange_with_its_usage() -> None:
    assert told(entry(usage={"prompt_tokens": 12, "completion_tokens": 34})) == [
        Ended("x1", "pay", "P0", "qwen", Outcome.COMPLETED, 12, 34, 1.5)
    ]


@pytest.mark.parametrize("odd", [-1, 1e300, float("nan")])
def test_odd_usage_is_no_usage(odd: float) -> None:
    (record,) = told(entry(usage={"prompt_tokens": odd}))

    assert (record.prompt_tokens, record.completion_tokens) == (None, None)


def test_entries_that_are_not_ours_are_skipped_and_take_no_other_along() -> None:
    foreign = entry()
    foreign.common_properties.metadata = Metadata(filter_metadata={"other": struct({"id": "x"})})  # type: ignore[union-attr]

    assert [each.id for each in told(foreign, entry(own={"tenant": "x"}), entry())] == ["x1"]


@pytest.mark.parametrize(
    ("status", "flags", "expected"),
    [
        (200, ResponseFlags(), Outcome.COMPLETED),
        (404, ResponseFlags(), Outcome.ENGINE_REJECTED),
        (0, ResponseFlags(), Outcome.CLIENT_GONE),
        (200, ResponseFlags(downstream_connection_termination=True), Outcome.CLIENT_GONE),
        (
            200,
            ResponseFlags(downstream_connection_termination=True, upstream_remote_reset=True),
            Outcome.CLIENT_GONE,
        ),
        (200, ResponseFlags(downstream_remote_reset=True), Outcome.CLIENT_GONE),
        (504, ResponseFlags(upstream_request_timeout=True), Outcome.TIMEOUT),
        (200, ResponseFlags(stream_idle_timeout=True), Outcome.TIMEOUT),
        (503, ResponseFlags(upstream_connection_failure=True), Outcome.ENGINE_ERROR),
        (200, ResponseFlags(upstream_connection_termination=True), Outcome.ENGINE_ERROR),
        (503, ResponseFlags(no_healthy_upstream=True), Outcome.ENGINE_ERROR),
        (503, ResponseFlags(), Outcome.ENGINE_REJECTED),
        (500, ResponseFlags(), Outcome.ENGINE_ERROR),
    ],
)
def test_how_it_ended(status: int, flags: ResponseFlags, expected: Outcome) -> None:
    (record,) = told(entry(status=status, flags=flags))

    assert record.outcome is expected
