"""The gRPC access-log servicer: Envoy says here how each admitted exchange ended.

Rules this module keeps:

* Only entries that carry our metadata count; others are none of our business.
* An entry that cannot be read is skipped, never an error to Envoy: a broken log stream would take
  all others with it.
* Who leaves loses nothing. Envoy does not hear when a stream ends before what it has just sent was read, and
  does not send it again. So a stream ends right after a batch, when the next is `contract.LOG_INTERVAL` away;
  Envoy sends that one on a new stream, to another Tidegate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from envoy.service.accesslog.v3 import als_pb2
from grpc import aio

from extproc import contract
from extproc.core.outcomes import Outcome
from extproc.core.records import Ended

log = logging.getLogger(__name__)

SERVICE = "envoy.service.accesslog.v3.AccessLogService"
METHOD = "StreamAccessLogs"

_RESPONSE: bytes = als_pb2.StreamAccessLogsResponse().SerializeToString()


class AccessLog:
    """Serves ``envoy.service.accesslog.v3.AccessLogService``."""

    def __init__(
        self, ended: Callable[[Ended], None], refused: Callable[[Any], None] | None = None
    ) -> None:
        """``refused`` hears every message as well, where the flood valve logs to us."""
        self._ended = ended
        self._refused = refused
        self._streams = 0
        self._leaving = False
        self._left = asyncio.Event()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler to add to a server."""
        stream: grpc.RpcMethodHandler[Any, bytes] = grpc.stream_unary_rpc_method_handler(
            self._stream,
            request_deserializer=als_pb2.StreamAccessLogsMessage.FromString,
            response_serializer=None,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {METHOD: stream})

    async def leave(self) -> None:
        """End each stream after its next batch, and return when all have ended.

        A stream on which nothing is to tell does not end, so wait for some `contract.LOG_INTERVAL` only.
        """
        self._leaving = True
        if self._streams:
            await self._left.wait()

    async def _stream(self, _requests: object, context: aio.ServicerContext[Any, bytes]) -> bytes:
        self._streams += 1
        try:
            while (message := await context.read()) is not aio.EOF:
                for record in read(message):
                    self._ended(record)
                if self._refused is not None:
                    self._refused(message)
                if self._leaving:
                    break
        finally:
            self._streams -= 1
            if self._leaving and not self._streams:
                self._left.set()
        return _RESPONSE


def read(message: Any) -> Iterator[Ended]:
    """Yield a record for each entry of a ``StreamAccessLogsMessage`` that is ours."""
    for entry in message.http_logs.log_entry:
        record = _read_entry(entry)
        if record is not None:
            yield record


def _read_entry(entry: Any) -> Ended | None:
    common = entry.common_properties
    namespaces = common.metadata.filter_metadata
    if contract.NAMESPACE not in namespaces:
        return None
    own = {
        name: value.string_value for name, value in namespaces[contract.NAMESPACE].fields.items()
    }
    if not own.get("id"):
        return None
    usage = namespaces[contract.USAGE_NAMESPACE].fields
    return Ended(
        id=own["id"],
        tenant=own.get("tenant", ""),
        service_class=own.get("class", ""),
        pool=own.get("pool", ""),
        outcome=outcome(entry.response.response_code.value, common.response_flags),
        prompt_tokens=_count(usage, contract.PROMPT_TOKENS),
        completion_tokens=_count(usage, contract.COMPLETION_TOKENS),
        seconds=common.time_to_last_downstream_tx_byte.ToNanoseconds() / 1e9,
    )


def _count(fields: Any, name: str) -> int | None:
    """Return a token count that Envoy's filters found, or None where it is absent or odd."""
    if name not in fields:
        return None
    number = fields[name].number_value
    return int(number) if 0 <= number < 1 << 53 else None


def outcome(status: int, flags: Any) -> Outcome:
    """Return how an exchange ended, from its HTTP status and Envoy's response flags.

    The client's leaving is looked at first: Envoy then resets the engine's side itself, which must
    not count against the engine.
    """
    raised = {field.name for field, _ in flags.ListFields()}
    if status == 0 or raised & _CLIENT_FLAGS:
        return Outcome.CLIENT_GONE
    if raised & _TIMEOUT_FLAGS:
        return Outcome.TIMEOUT
    if raised & _ENGINE_FLAGS:
        return Outcome.ENGINE_ERROR
    if status == 503 or 400 <= status < 500:
        return Outcome.ENGINE_REJECTED  # it generated nothing, and nothing is charged
    return Outcome.ENGINE_ERROR if status >= 500 else Outcome.COMPLETED


_CLIENT_FLAGS = frozenset(
    ("downstream_connection_termination", "downstream_remote_reset", "downstream_protocol_error")
)
_TIMEOUT_FLAGS = frozenset(("upstream_request_timeout", "stream_idle_timeout", "duration_timeout"))
_ENGINE_FLAGS = frozenset(
    (
        "failed_local_healthcheck",
        "no_healthy_upstream",
        "local_reset",
        "upstream_remote_reset",
        "upstream_connection_failure",
        "upstream_connection_termination",
        "upstream_overflow",
        "no_route_found",
        "upstream_protocol_error",
        "upstream_max_stream_duration_reached",
        "upstream_retry_limit_exceeded",
        "no_cluster_found",
    )
)
