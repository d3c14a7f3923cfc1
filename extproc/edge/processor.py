"""The ext_proc servicer: moves messages between gRPC and exchanges, and nothing else.

Rules this module keeps:

* While an exchange waits, or may be revoked, it is heard and its stream is watched at once: Envoy
  ends it when the client leaves. What Envoy says goes first.
* What is answered at once is over: the stream ends here, which Envoy would do next, and the answer
  costs one operation of gRPC's less.
* One exchange per stream; whatever ends the stream (Envoy's end, a cancellation, a fault of ours)
  closes the exchange, so that nothing stays reserved.
* What no protobuf can carry, a header that is not UTF-8, is answered with 400: as a fault of ours, one
  odd byte would lead past every gate wherever ``failure_mode`` is open.
* A fault of ours at a message is the exchange's to answer (`Exchange.fail`). One that is met nowhere else
  ends the stream with an error, and Envoy does what ``failure_mode`` says. It is logged by its kind and
  its place, not by its message, which may quote what the caller sent; and it ends here, because gRPC
  would log it in full.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from typing import Any

import grpc
from grpc import aio

from extproc.core.faults import Place
from extproc.core.reasons import Reason
from extproc.edge import wire
from extproc.edge.exchange import Exchange, Gatekeeper, Resolution, State
from extproc.edge.messages import Answer, Phase, Reply
from extproc.openai import replies
from extproc.openai.endpoints import Endpoint

log = logging.getLogger(__name__)

_REFUSAL = replies.error(
    Endpoint.CHAT,  # which call it was, nobody can say
    status=400,
    message="A request header or the path is not UTF-8.",
    type="invalid_request_error",
    code=Reason.BAD_REQUEST.value,
)
_NO_TEXT = Answer(_REFUSAL.status, _REFUSAL.headers, _REFUSAL.body)


class Processor:
    """Serves ``envoy.service.ext_proc.v3.ExternalProcessor``."""

    def __init__(self, gatekeeper: Gatekeeper) -> None:
        self._gatekeeper = gatekeeper
        self.streams = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Wait until no exchange is under way."""
        await self._idle.wait()

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler to add to a server."""
        process: grpc.RpcMethodHandler[Any, bytes] = grpc.stream_stream_rpc_method_handler(
            self._process, request_deserializer=wire.parse, response_serializer=None
        )
        return grpc.method_handlers_generic_handler(wire.SERVICE, {wire.METHOD: process})

    async def _process(self, _requests: object, context: aio.ServicerContext[Any, bytes]) -> None:
        loop = asyncio.get_running_loop()
        notice: asyncio.Future[Resolution] = loop.create_future()
        exchange = Exchange(self._gatekeeper, lambda resolution: notice.set_result(resolution))
        reading: asyncio.Future[Any] | None = None
        self.streams += 1
        self._idle.clear()
        try:
            while True:
                if exchange.listens:
                    reading = reading or asyncio.ensure_future(context.read())
                    await asyncio.wait((reading, notice), return_when=asyncio.FIRST_COMPLETED)
                    if not reading.done():
                        resolution, notice = notice.result(), loop.create_future()
                        await _resume(exchange, resolution, context)
                        continue
                message = await (reading or context.read())
                reading = None
                if message is aio.EOF:
                    break
                raw = _reply(exchange, message)
                del message  # it holds the body once more, perhaps for as long as the call waits
                if raw is not None:
                    await context.write(raw)
                if exchange.state in _OVER:
                    break
        except Exception as error:
            log.error("exchange failed", extra=_told(error, exchange))
            await context.abort(grpc.StatusCode.INTERNAL, "exchange failed")
        finally:
            exchange.close()
            if reading is not None:
                reading.cancel()
            self.streams -= 1
            if not self.streams:
                self._idle.set()


_OVER = (State.ANSWERED, State.ENDED)


def _reply(exchange: Exchange, message: Any | None) -> bytes | None:
    """Return what is said to a message, None for nothing, or not yet."""
    if message is None:
        return wire.encode(_NO_TEXT)
    try:
        event = wire.decode(message)
    except wire.UnknownPhaseError:
        raise
    except Exception as error:
        phase = wire.phase_of(message)
        return _encoded(exchange, exchange.fail(Place.DECODE, error, phase), phase)
    return _encoded(exchange, exchange.receive(event), event.phase)


async def _resume(
    exchange: Exchange, resolution: Resolution, context: aio.ServicerContext[Any, bytes]
) -> None:
    raw = _encoded(exchange, exchange.resume(resolution), None)
    if raw is not None:
        await context.write(raw)


def _encoded(exchange: Exchange, reply: Reply | None, phase: Phase | None) -> bytes | None:
    if reply is None:
        return None
    try:
        return wire.encode(reply)
    except Exception as error:
        return wire.encode(exchange.withdraw(error, phase))


def _told(error: Exception, exchange: Exchange) -> dict[str, str]:
    place = "".join(traceback.format_tb(error.__traceback__))
    return {"state": exchange.state.value, "error": type(error).__name__, "traceback": place}
