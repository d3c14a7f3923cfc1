"""The protocol of Redis and Valkey (RESP2) over one connection, as far as scripts need it.

Rules this module keeps:

* Commands are sent as they come and answered in that order; nobody waits for another's answer.
* An answer that nobody waits for any more is taken off the wire all the same.
* What is no RESP, or larger than `LARGEST`, ends the connection, and so does its loss: all that wait
  are told. Nothing is sent twice.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import cast

from extproc.config import RedisAddress

LARGEST = 16 << 20
"""Bytes of one answer."""

Value = bytes | int | list["Value"] | None


class ServerError(Exception):
    """The server refuses a command; ``code`` is the first word of what it says, such as NOSCRIPT."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


async def connect(address: RedisAddress) -> Connection:
    """Return a connection that is ready for commands.

    Raises:
        OSError: there is none.
        ServerError: the server does not let us in.
    """
    loop = asyncio.get_running_loop()
    if address.path:
        _, connection = await loop.create_unix_connection(Connection, address.path)
    else:
        context = ssl.create_default_context() if address.tls else None
        _, connection = await loop.create_connection(
            Connection, address.host, address.port, ssl=context
        )
    try:
        if address.password:
            who = (address.user, address.password) if address.user else (address.password,)
            await connection.send("AUTH", *who)
        if address.database:
            await connection.send("SELECT", str(address.database))
    except BaseException:
        connection.close()
        raise
    return connection


class Connection(asyncio.Protocol):
    """See the module's rules. ``lost`` is done when it is closed, by whomever."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[asyncio.Future[Value]] = deque()
        self._received = b""

    def send(self, *words: str | bytes) -> asyncio.Future[Value]:
        """Send a command; return its answer, which fails with `ServerError` or `ConnectionError`."""
        answer: asyncio.Future[Value] = self._loop.create_future()
        if self._transport is None or self.lost.done():
            answer.set_exception(ConnectionResetError())
            return answer
        self._waiting.append(answer)
        self._transport.write(pack(*words))
        return answer

    def close(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are of another family

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._received += data
        at = 0
        try:
            while at < len(self._received):
                value, at = parse(self._received, at)
                self._answer(value)
        except _IncompleteError:
            if len(self._received) - at > LARGEST:
                self.close()
        except (ValueError, IndexError):  # no RESP, or an answer that nobody has asked for
            self.close()
        self._received = self._received[at:]

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(ConnectionResetError())
        self._waiting.clear()
        if not self.lost.done():
            self.lost.set_result(None)

    def _answer(self, value: Value | ServerError) -> None:
        answer = self._waiting.popleft()
        if answer.done():
            return
        if isinstance(value, ServerError):
            answer.set_exception(value)
        else:
            answer.set_result(value)


class _IncompleteError(Exception):
    """More has to come."""


def pack(*words: str | bytes) -> bytes:
    """Return a command as it is sent."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        raw = word.encode() if isinstance(word, str) else word
        parts.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(parts)


def parse(data: bytes, at: int) -> tuple[Value | ServerError, int]:
    """Return the answer that begins at ``at``, and where the next one does.

    Raises:
        _IncompleteError: it is not all there.
        ValueError: it is no RESP.
    """
    end = data.find(b"\r\n", at)
    if end < 0:
        raise _IncompleteError
    kind, line, after = data[at : at + 1], data[at + 1 : end], end + 2
    match kind:
        case b"+":
            return line, after
        case b"-":
            return ServerError(line.split(b" ", 1)[0].decode("ascii", "replace")), after
        case b":":
            return int(line), after
        case b"$":
            return _parse_bulk(data, int(line), after)
        case b"*":
            return _parse_array(data, int(line), after)
        case _:
            raise ValueError("no RESP")


def _parse_bulk(data: bytes, length: int, at: int) -> tuple[Value, int]:
    if length < 0:
        return None, at
    if len(data) < at + length + 2:
        raise _IncompleteError
    return data[at : at + length], at + length + 2


def _parse_array(data: bytes, length: int, at: int) -> tuple[Value | ServerError, int]:
    if length < 0:
        return None, at
    values: list[Value] = []
    problem: ServerError | None = None
    for _ in range(length):
        value, at = parse(data, at)
        if isinstance(value, ServerError):
            problem = value
        else:
            values.append(value)
    return problem or values, at
