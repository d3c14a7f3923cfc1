"""The ext_proc servicer: moves messages between gRPC and exchanges, and nothing else.

Rules this module keeps:

* One exchange per stream; whatever ends the stream (Envoy's end, a cancellation, a fault of ours)
  closes the exchange, so that nothing stays reserved.
* A fault of ours ends the stream with an error and Envoy does what ``failure_mode`` says; it is
  logged without anything that the caller sent.
"""

from __future__ import annotations

import logging
from typing import Any

import grpc
from grpc import aio

from extproc.edge import wire
from extproc.edge.exchange import Exchange, Gatekeeper

log = logging.getLogger(__name__)


class Processor:
    """Serves ``envoy.service.ext_proc.v3.ExternalProcessor``."""

    def __init__(self, gatekeeper: Gatekeeper) -> None:
        self._gatekeeper = gatekeeper
        self.streams = 0

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler to add to a server."""
        process: grpc.RpcMethodHandler[Any, bytes] = grpc.stream_stream_rpc_method_handler(
            self._process, request_deserializer=wire.parse, response_serializer=None
        )
        return grpc.method_handlers_generic_handler(wire.SERVICE, {wire.METHOD: process})

    async def _process(self, _requests: object, context: aio.ServicerContext[Any, bytes]) -> None:
        exchange = Exchange(self._gatekeeper)
        self.streams += 1
        try:
            while (message := await context.read()) is not aio.EOF:
                await context.write(wire.encode(exchange.receive(wire.decode(message))))
        except Exception:
            log.exception("exchange failed", extra={"state": exchange.state.value})
            raise
        finally:
            self.streams -= 1
            exchange.close()
