"""The floor: the least that an external processor in grpc.aio can do. ``python -m bench.noop``.

It parses each message and writes a reply that was built before, so what it costs is grpc.aio, uvloop
and protobuf alone: upb, or with ``--betterproto`` envoy-data-plane's classes. Server, options, health and access log are Tidegate's own;
what Envoy is told differs in nothing that would cost Envoy or the connection less.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import uvloop
from envoy.service.accesslog.v3 import als_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from grpc import aio
from grpc_health.v1 import health_pb2

from extproc import contract
from extproc.edge import access_log, server, wire

_METADATA = {
    "id": "0123456789ab00000001",
    "tenant": "pay",
    "class": "P0",
    "verdict": "admit",
    "reason": "admitted",
    "pool": "*",
}
"""As much as Tidegate sets; ``verdict`` makes Envoy send its access log here as it does there."""
_LABELS = {"x-tidegate-verdict": "shed", "x-tidegate-reason": "kv_watermark"}
_FALLBACK = (
    b'{"id":"chatcmpl-promo-shedded-0123456789ab00000001","object":"chat.completion","created":0,'
    b'"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":"'
    + b"We are very busy right now. "
    * 5
    + b'"},"finish_reason":"load_shedding_fallback"}],"usage":{"prompt_tokens":0,'
    b'"completion_tokens":0,"total_tokens":0},"tidegate":{"reason":"kv_watermark"}}'
)


def admitting() -> dict[str, bytes]:
    """Return a reply for each kind of message that lets the exchange pass."""
    replies = {}
    for kind in ("request_headers", "request_body", "response_headers"):
        response = pb.ProcessingResponse()
        getattr(response, kind).SetInParent()
        if kind == "request_body":
            _set_metadata(response, _METADATA)
        replies[kind] = bytes(response.SerializeToString())
    return replies


def shedding() -> dict[str, bytes]:
    """Return a reply for each kind of message that ends the exchange with a fallback."""
    response = pb.ProcessingResponse()
    response.immediate_response.status.code = 200
    response.immediate_response.body = _FALLBACK
    for name, value in {"content-type": "application/json", **_LABELS}.items():
        option = response.immediate_response.headers.set_headers.add()
        option.header.key, option.header.raw_value = name, value.encode()
    _set_metadata(response, {**_METADATA, "verdict": "shed"})
    return {**admitting(), "request_body": bytes(response.SerializeToString())}


def _set_metadata(response: Any, metadata: Mapping[str, str]) -> None:
    fields = response.dynamic_metadata.fields[contract.NAMESPACE].struct_value.fields
    for name, value in metadata.items():
        fields[name].string_value = value


@dataclass(frozen=True, slots=True)
class Codec:
    """What reads messages.

    Attributes:
        parse: bytes of a ``ProcessingRequest`` to a message.
        kind: which of its messages a ``ProcessingRequest`` carries.
        parse_log: bytes of a ``StreamAccessLogsMessage`` to a message.
    """

    parse: Callable[[bytes], Any]
    kind: Callable[[Any], str]
    parse_log: Callable[[bytes], Any]


UPB = Codec(
    wire.parse,
    lambda message: str(message.WhichOneof("request")),
    als_pb2.StreamAccessLogsMessage.FromString,
)


def betterproto() -> Codec:
    """Return envoy-data-plane's codec; importing it takes a second."""
    from betterproto2 import which_one_of
    from envoy_data_plane.envoy.service.accesslog.v3 import StreamAccessLogsMessage
    from envoy_data_plane.envoy.service.ext_proc.v3 import ProcessingRequest

    return Codec(
        ProcessingRequest.parse,
        lambda message: which_one_of(message, "request")[0],
        StreamAccessLogsMessage.parse,
    )


def handlers(replies: Mapping[str, bytes], codec: Codec) -> tuple[grpc.GenericRpcHandler, ...]:
    """Return the handlers of both services."""

    async def process(_requests: object, context: aio.ServicerContext[Any, bytes]) -> None:
        while (message := await context.read()) is not aio.EOF:
            await context.write(replies[codec.kind(message)])

    async def log(_requests: object, context: aio.ServicerContext[Any, bytes]) -> bytes:
        while await context.read() is not aio.EOF:
            pass
        return b""

    stream: grpc.RpcMethodHandler[Any, bytes] = grpc.stream_stream_rpc_method_handler(
        process, request_deserializer=codec.parse, response_serializer=None
    )
    entries: grpc.RpcMethodHandler[Any, bytes] = grpc.stream_unary_rpc_method_handler(
        log,
        request_deserializer=codec.parse_log,
        response_serializer=None,
    )
    return (
        grpc.method_handlers_generic_handler(wire.SERVICE, {wire.METHOD: stream}),
        grpc.method_handlers_generic_handler(access_log.SERVICE, {access_log.METHOD: entries}),
    )


async def serve(address: str, replies: Mapping[str, bytes], codec: Codec) -> None:
    """Serve until cancelled."""
    grpc_server, health = server.build(handlers(replies, codec), address, max_body=32 << 20)
    await grpc_server.start()
    await health.set("", health_pb2.HealthCheckResponse.SERVING)
    await grpc_server.wait_for_termination()


def main() -> None:
    """Serve as the command line says."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("address")
    options.add_argument("replies", choices=("admit", "shed"))
    options.add_argument("--betterproto", action="store_true")
    chosen = options.parse_args()
    replies = {"admit": admitting, "shed": shedding}[chosen.replies]()
    uvloop.run(serve(chosen.address, replies, betterproto() if chosen.betterproto else UPB))


if __name__ == "__main__":
    main()
