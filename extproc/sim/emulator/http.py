"""What the emulator does with HTTP that has nothing to do with engines."""

from __future__ import annotations

import socket
import struct
import zlib
from typing import NoReturn

from aiohttp import web

from extproc.sim.emulator.bodies import dump
from extproc.sim.emulator.schema import INVALID, RefusedError

JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"
MAX_BODY = 32 * 1024 * 1024
"""Bytes of a body at most, before and after decompression."""


async def sign(request: web.Request, response: web.StreamResponse) -> None:
    """Give a response the headers that every one of vLLM's has."""
    response.headers["server"] = "uvicorn"
    response.headers["vary"] = "Origin"


async def plain_body(request: web.Request) -> bytes:
    """Return the body, decompressed.

    Raises:
        RefusedError: it is not what its encoding says, or too long when decompressed.
    """
    body = await request.read()
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "deflate"):
        raise RefusedError(415, INVALID, f"content-encoding {encoding} is not supported")
    inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        plain = inflater.decompress(body, MAX_BODY)
    except zlib.error as error:
        raise RefusedError(400, INVALID, "There was an error parsing the body") from error
    if inflater.unconsumed_tail:
        raise RefusedError(413, INVALID, f"the body has more than {MAX_BODY} bytes decompressed")
    return plain


def cut(request: web.Request) -> NoReturn:
    """Reset the connection and end the handler."""
    transport = request.transport
    if transport is not None:
        connection: socket.socket | None = transport.get_extra_info("socket")
        if connection is not None:
            # Lingering for no time makes the kernel send a reset instead of an orderly end.
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        transport.abort()
    raise ConnectionResetError("cut on purpose")


def json_response(
    value: object, *, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    """Return a response with a JSON body."""
    return web.Response(status=status, body=dump(value), content_type=JSON, headers=headers)
