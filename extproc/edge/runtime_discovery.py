"""Runtime discovery (RTDS): Envoys ask here what they shall refuse themselves.

Rules this module keeps:

* Each answer is the whole layer and is good for `TTL` seconds; it is sent again every `HEARTBEAT`,
  because a heartbeat without it does not keep Envoy from forgetting it. So the valve opens by itself
  when we are gone. The loop may stall for no longer than their difference.
* A change is sent at once, to every Envoy that listens; what it already said is not waited for.
* What an Envoy refuses (NACK) is logged by its code once and not sent to it again before it changes; what
  it had before stays, and dies by its TTL.
* A stream that asks for something else than our layer gets nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import grpc
from envoy.service.discovery.v3 import discovery_pb2
from envoy.service.runtime.v3 import rtds_pb2
from google.protobuf import struct_pb2
from grpc import aio

from extproc import contract

log = logging.getLogger(__name__)

SERVICE = "envoy.service.runtime.v3.RuntimeDiscoveryService"
METHOD = "StreamRuntime"
TYPE_URL = "type.googleapis.com/envoy.service.runtime.v3.Runtime"
TTL, HEARTBEAT = 5.0, 1.0
"""Seconds."""


class RuntimeDiscovery:
    """Serves the runtime layer; `publish` changes it.

    Attributes:
        streams: how many Envoys listen.
    """

    def __init__(self, heartbeat: float = HEARTBEAT) -> None:
        self.streams = 0
        self._heartbeat = heartbeat
        self._layer: dict[str, float] = {}
        self._version = 0
        self._changed = asyncio.Event()

    def publish(self, layer: Mapping[str, float]) -> None:
        """Let every Envoy have this layer: shares, 0..1, by runtime key."""
        if layer != self._layer:
            self._layer = dict(layer)
            self._version += 1
            self._changed.set()
            self._changed = asyncio.Event()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler to add to a server."""
        stream: grpc.RpcMethodHandler[Any, bytes] = grpc.stream_stream_rpc_method_handler(
            self._stream,
            request_deserializer=discovery_pb2.DiscoveryRequest.FromString,
            response_serializer=None,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {METHOD: stream})

    async def _stream(self, _: object, context: aio.ServicerContext[Any, bytes]) -> None:
        first = await context.read()
        if first is aio.EOF or contract.VALVE_LAYER not in first.resource_names:
            return
        conversation = Conversation()
        self.streams += 1
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._send(conversation, context))
                while (request := await context.read()) is not aio.EOF:
                    problem = conversation.heard(request)
                    if problem is not None:
                        log.warning("Envoy refuses its runtime layer", extra={"code": problem})
                sending.cancel()
        finally:
            self.streams -= 1

    async def _send(
        self, conversation: Conversation, context: aio.ServicerContext[Any, bytes]
    ) -> None:
        while True:
            changed = self._changed
            answer = conversation.answer(self._version, self._layer)
            if answer is not None:
                await context.write(answer)
            try:
                await asyncio.wait_for(changed.wait(), self._heartbeat)
            except TimeoutError:
                continue


class Conversation:
    """What was said with one Envoy; knows nothing of streams and time."""

    def __init__(self) -> None:
        self._number = 0
        self._refused = -1

    def answer(self, version: int, layer: Mapping[str, float]) -> bytes | None:
        """Return the next response, or None where this version was refused.

        Each has a version of its own: Envoy takes what has the same for what it has.
        """
        if version == self._refused:
            return None
        self._number += 1
        name = f"{version}.{self._number}"
        fields = struct_pb2.Struct()
        fields.update({key: _number(key, share) for key, share in layer.items()})
        resource = discovery_pb2.Resource(name=contract.VALVE_LAYER)
        resource.resource.Pack(rtds_pb2.Runtime(name=contract.VALVE_LAYER, layer=fields))
        resource.ttl.FromNanoseconds(round(TTL * 1e9))
        response = discovery_pb2.DiscoveryResponse(version_info=name, type_url=TYPE_URL, nonce=name)
        response.resources.add().Pack(resource)
        return bytes(response.SerializeToString())

    def heard(self, request: Any) -> int | None:
        """Take an ACK or a NACK; return the error's code where a version is refused that was not yet."""
        version = request.response_nonce.partition(".")[0]
        if not request.HasField("error_detail") or not version.isdecimal():
            return None
        if int(version) <= self._refused:
            return None
        self._refused = int(version)
        return int(request.error_detail.code)


def _number(key: str, share: float) -> float | dict[str, int | str]:
    """Return a share as ``FractionalPercent``, where a plain number would be whole percents.

    An access log's filter takes plain numbers only, and of its own denominator.
    """
    numerator = round(share * 1e6)
    if key == contract.VALVE_SAMPLED:
        return float(numerator)
    return {"numerator": numerator, "denominator": "MILLION"}
