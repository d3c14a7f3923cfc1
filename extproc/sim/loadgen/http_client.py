"""A frugal HTTP/1.1 client for load: POST out, status, times and the start of the body back.

General clients cost more CPU per request than the gateway under test, which would then be measured
on what they leave over. This one knows only what load needs.

Rules this module keeps:

* Sending never waits: without an idle connection a new one is opened, whatever else is in flight.
* Every request has exactly one answer, handed to its callback: a response, or what went wrong.
* Of a body only the start is kept; how long an answer is costs no memory.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

KEPT = 2048
"""Bytes of a body that are kept: enough to see what it is."""
TAIL = 256
"""Bytes of the end of a body that are kept: enough to see how a stream ended."""
ABANDONED = "abandoned"
"""The error of a request that was in flight when its client was closed."""
_LARGEST_HEAD = 1 << 16
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9]\d\d)(?: [^\r\n]*)?", re.ASCII)


class BadResponseError(ValueError):
    """The peer does not speak HTTP/1.1."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request.

    Attributes:
        status: the HTTP status, or 0 where none came.
        body: the first `KEPT` bytes of the body.
        first_byte: when the body began (where there is none: when the head was complete), on the
            client's clock; for a stream from a model this is its first token.
        end: when the answer was complete, or was given up.
        error: why there is no complete response, or None.
        tail: the last `TAIL` bytes of the body.
        pause: longest time between two arrivals of bytes of the body, in seconds.
    """

    status: int
    body: bytes
    first_byte: float
    end: float
    error: str | None = None
    tail: bytes = b""
    pause: float = 0.0


class Response:
    """One response as it is read off a connection; without I/O.

    Attributes:
        status: the HTTP status; 0 until the head is complete.
        body: the first `KEPT` bytes of the body, decoded from its chunks.
        tail: its last `TAIL` bytes.
        begun: some of the body is there, or there will be none.
        complete: nothing is missing.
        reusable: the connection serves another request afterwards.
    """

    __slots__ = (
        "_buffer",
        "_chunked",
        "_left",
        "begun",
        "body",
        "complete",
        "reusable",
        "status",
        "tail",
    )

    def __init__(self) -> None:
        self.status = 0
        self.body = self.tail = b""
        self.begun = self.complete = False
        self.reusable = True
        self._buffer = b""
        self._chunked = False
        self._left: int | None = 0  # bytes of the body or the chunk; None: all until the end

    def feed(self, data: bytes) -> None:
        """Take bytes from the connection.

        Raises:
            BadResponseError: they are not an HTTP/1.1 response, or go on beyond it.
        """
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
        while data and not self.complete:
            if not self.status:
                data = self._read_head(data)
            elif self._chunked and not self._left:
                data = self._read_chunk_size(data)
            else:
                data = self._read_body(data)
        if data:
            raise BadResponseError("more bytes than the response has")

    def eof(self) -> None:
        """Take the end of the connection.

        Raises:
            BadResponseError: it came before the end of the response.
        """
        if self._left is not None or not self.status:
            raise BadResponseError("connection closed")
        self.begun = self.complete = True

    def _read_head(self, data: bytes) -> bytes:
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > _LARGEST_HEAD:
                raise BadResponseError("the head does not end")
            self._buffer = data
            return b""
        first, *lines = data[:end].split(b"\r\n")
        status_line = _STATUS_LINE.fullmatch(first)
        if status_line is None:
            raise BadResponseError("not an HTTP/1.1 status line")
        status = int(status_line[2])
        if status >= 200:  # else an interim response: the real one follows
            self.status = status
            self._read_headers(lines, persistent=status_line[1] == b"1")
        return data[end + 4 :]

    def _read_headers(self, lines: Iterable[bytes], *, persistent: bool) -> None:
        self.reusable = persistent
        self._left = None
        for line in lines:
            name, _, value = line.partition(b":")
            match name.lower():
                case b"content-length":
                    self._left = _number(value.strip(), 10)
                case b"transfer-encoding":
                    self._chunked = value.strip().lower() == b"chunked"
                case b"connection":
                    self.reusable = value.strip().lower() != b"close"
        if self._chunked:
            self._left = 0
        elif self._left == 0 or self.status in (204, 304):
            self._left = 0
            self.begun = self.complete = True
        elif self._left is None:
            self.reusable = False

    def _read_chunk_size(self, data: bytes) -> bytes:
        end = data.find(b"\r\n")
        if end < 0:
            if len(data) > _LARGEST_HEAD:
                raise BadResponseError("a chunk has no size")
            self._buffer = data
            return b""
        size = _number(data[:end].partition(b";")[0].strip(), 16)
        if size:
            self._left = size + 2  # with the line end after it
            return data[end + 2 :]
        trailers = data.find(b"\r\n\r\n", end)
        if trailers < 0:
            self._buffer = data
            return b""
        self.begun = self.complete = True
        return data[trailers + 4 :]

    def _read_body(self, data: bytes) -> bytes:
        left = self._left
        part, rest = (data, b"") if left is None else (data[:left], data[left:])
        if left is not None:
            self._left = left - len(part)
        self.begun = True
        # The last two bytes of a chunk are its line end.
        content = part if left is None or not self._chunked else part[: max(left - 2, 0)]
        if len(self.body) < KEPT:
            self.body = (self.body + content)[:KEPT]
        self.tail = (self.tail + content)[-TAIL:]
        self.complete = not self._chunked and self._left == 0
        return rest


def _number(digits: bytes, base: int) -> int:
    try:
        number = int(digits, base)
    except ValueError as error:
        raise BadResponseError("a length is not a number") from error
    if number < 0:
        raise BadResponseError("a length is negative")
    return number


class _Connection(asyncio.Protocol):
    """A connection that carries one request at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._response: Response | None = None
        self._done: Callable[[Answer], None] | None = None
        self._first_byte = self._last_byte = self._pause = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            "asyncio.Transport", transport
        )  # of a stream; uvloop's is no subclass
        self._client.remember(self)

    def send(self, request: bytes, done: Callable[[Answer], None]) -> None:
        """Send a request; nothing else is in flight here."""
        self._response, self._done = Response(), done
        self._first_byte = self._last_byte = self._pause = 0.0
        if self._transport is not None:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:  # unasked bytes: this connection can no longer be trusted
            self.close()
            return
        try:
            response.feed(data)
        except BadResponseError as error:
            self._finish(str(error))
            self.close()
            return
        if response.begun:
            now = self._client.clock()
            if self._first_byte:
                self._pause = max(self._pause, now - self._last_byte)
            else:
                self._first_byte = now
            self._last_byte = now
        if response.complete:
            self._finish(None)
            if response.reusable:
                self._client.idle.append(self)
            else:
                self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.forget(self)
        if self._response is None:
            return
        try:
            self._response.eof()
        except BadResponseError as error:
            self._finish(str(error) if exc is None else _name(exc))
        else:
            self._finish(None)

    def give_up(self, why: str) -> None:
        """End what is in flight."""
        if self._response is not None:
            self._finish(why)
        self.close()

    def close(self) -> None:
        """Close without waiting for anything."""
        self._client.forget(self)
        if self._transport is not None:
            self._transport.abort()

    def _finish(self, error: str | None) -> None:
        response, done = self._response, self._done
        self._response = self._done = None
        if response is not None and done is not None:
            now = self._client.clock()
            first = self._first_byte or now
            body, tail = response.body, response.tail
            done(Answer(response.status, body, first, now, error, tail, self._pause))


class Client:
    """Keep-alive connections to one server; an async context manager.

    Args:
        url: ``http://`` or ``https://`` with host and port; a path is put before each request's.
        clock: seconds, monotonic; the times of answers are on it.

    Raises:
        ValueError: the URL is of no such form.
    """

    def __init__(self, url: str, *, clock: Callable[[], float]) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url} is not an http:// or https:// address")
        self.clock = clock
        self.idle: list[_Connection] = []
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._authority = parts.netloc.rpartition("@")[2]
        self._prefix = parts.path.rstrip("/")
        self._open: set[_Connection] = set()
        self._connecting: dict[asyncio.Task[None], Callable[[Answer], None]] = {}

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        connecting = tuple(self._connecting)
        self.give_up(ABANDONED)
        await asyncio.gather(*connecting, return_exceptions=True)

    async def connect(self, count: int) -> None:
        """Open connections beforehand, so that no request has to wait for its own.

        Raises:
            OSError: the server cannot be reached.
        """
        for _ in range(count - len(self.idle)):
            self.idle.append(await self._connect())

    def head(self, path: str, headers: Iterable[tuple[str, str]]) -> bytes:
        """Return the head of a POST of JSON, up to the value of ``content-length``."""
        lines = [
            f"POST {self._prefix}{path} HTTP/1.1",
            f"host: {self._authority}",
            "content-type: application/json",
            *(f"{name}: {value}" for name, value in headers),
        ]
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a header holds a line end")
        return "\r\n".join([*lines, "content-length: "]).encode()

    def send(self, head: bytes, body: bytes, done: Callable[[Answer], None]) -> None:
        """Send a request now; ``done`` gets its answer, later."""
        request = b"%b%d\r\n\r\n%b" % (head, len(body), body)
        if self.idle:
            self.idle.pop().send(request, done)
        else:
            task = asyncio.get_running_loop().create_task(self._send_on_new(request, done))
            self._connecting[task] = done

    def give_up(self, why: str) -> None:
        """Answer everything that is in flight with this error, and close all connections."""
        connecting, self._connecting = self._connecting, {}
        for task, done in connecting.items():
            task.cancel()
            self._fail(done, why)
        for connection in tuple(self._open):
            connection.give_up(why)

    def remember(self, connection: _Connection) -> None:
        """Keep a connection that is open."""
        self._open.add(connection)

    def forget(self, connection: _Connection) -> None:
        """Take out a connection that is closed."""
        self._open.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)

    async def _send_on_new(self, request: bytes, done: Callable[[Answer], None]) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        try:
            connection = await self._connect()
        except OSError as error:
            self._connecting.pop(task, None)
            self._fail(done, _name(error))
        else:
            self._connecting.pop(task, None)
            connection.send(request, done)

    def _fail(self, done: Callable[[Answer], None], error: str) -> None:
        now = self.clock()
        done(Answer(0, b"", now, now, error))

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(10):
            _, connection = await loop.create_connection(
                lambda: _Connection(self), self._host, self._port, ssl=self._tls
            )
        return connection


def _name(error: Exception) -> str:
    """Return what kind of failure this is; few kinds, so that they can be counted."""
    return "timed out" if isinstance(error, TimeoutError) else type(error).__name__
