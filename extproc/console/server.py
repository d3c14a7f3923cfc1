"""The pages, what they call, and the websocket that keeps them up to date.

Rules this module keeps:

* Without a session there is nothing but the page itself, which holds no data.
* What a page asks of the control API goes there as it is, with the token of who asks.
* A browser that is slow gets fewer states, never old ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard
from weakref import WeakSet

import grpc
import msgspec
from aiohttp import WSCloseCode, web
from grpc import aio

from extproc.console.api import METHODS, ControlApi, Method
from extproc.console.attempts import Attempts
from extproc.console.guard import Guard, add_headers
from extproc.console.messages import UnreadableRequestError, plain, read
from extproc.console.sessions import Session, Sessions
from extproc.console.watch import Watch

log = logging.getLogger(__name__)

COOKIE = "tidegate_session"
LOGGED_OUT = 4401
"""How the websocket is closed where the session has ended."""

_STATIC = Path(__file__).parent / "static"
_LARGEST_BODY = 64 << 10
_LONGEST_TOKEN = 1024
_NEWS_SECONDS = 5.0
_VERIFY_SECONDS = 60.0
_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
_NO_TOKEN = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class Server:
    """The console of one Tidegate.

    Args:
        api: the control API.
        watch: the state; to be run elsewhere.
        guard: knows which requests are for us and from us.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        api: ControlApi,
        watch: Watch,
        guard: Guard,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._watch = watch
        self._guard = guard
        self._clock = clock
        self._sessions = Sessions(clock)
        self._attempts = Attempts(clock)
        self._sockets: WeakSet[web.WebSocketResponse] = WeakSet()
        self._page = (_STATIC / "index.html").read_text(encoding="utf-8")

    def application(self) -> web.Application:
        """Return what aiohttp serves."""
        application = web.Application(
            middlewares=[self._guard.middleware()], client_max_size=_LARGEST_BODY
        )
        application.on_response_prepare.append(add_headers)
        application.on_shutdown.append(self._close_sockets)
        application.router.add_get("/", self._show_page)
        application.router.add_get("/healthz", self._show_health)
        application.router.add_static("/static", _STATIC)
        application.router.add_post("/api/login", self._log_in)
        application.router.add_post("/api/logout", self._log_out)
        application.router.add_get("/api/me", self._show_me)
        application.router.add_post("/api/{service}/{method}", self._forward)
        application.router.add_get("/live", self._live)
        return application

    async def _show_page(self, request: web.Request) -> web.Response:
        language = preferred_language(request.headers.get("accept-language", ""))
        page = self._page.replace('lang="en"', f'lang="{language}"', 1)
        return web.Response(text=page, content_type="text/html")

    async def _show_health(self, _: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def _log_in(self, request: web.Request) -> web.Response:
        address = request.remote or ""
        token = (await _body(request)).get("token")
        wait = self._attempts.take(address)
        if wait:
            log.warning("too many attempts to log in", extra={"address": address})
            headers = {"retry-after": str(int(wait) + 1)}
            return _failure(429, "RESOURCE_EXHAUSTED", "too many attempts", headers)
        if not _may_be_token(token):
            return _failure(401, "UNAUTHENTICATED", "")
        try:
            caller = await self._api.caller(token)
        except aio.AioRpcError as error:
            if error.code() in _NO_TOKEN:
                log.warning("a wrong token", extra={"address": address})
                return _failure(401, "UNAUTHENTICATED", "")
            self._attempts.give_back(address)
            return _refused(error)
        self._attempts.give_back(address)
        self._sessions.end(request.cookies.get(COOKIE, ""))
        name = self._sessions.begin(token, caller.who, caller.role)
        log.info("logged in", extra={"who": caller.who, "role": caller.role, "address": address})
        response = _json({"who": caller.who, "role": caller.role})
        secure = (self._guard.origin(request) or "").startswith("https:")
        response.set_cookie(COOKIE, name, httponly=True, samesite="Strict", secure=secure, path="/")
        return response

    async def _log_out(self, request: web.Request) -> web.Response:
        self._sessions.end(request.cookies.get(COOKIE, ""))
        response = _json({})
        response.del_cookie(COOKIE, path="/")
        return response

    async def _show_me(self, request: web.Request) -> web.Response:
        session = self._sessions.find(request.cookies.get(COOKIE, ""))
        return _json(session and {"who": session.who, "role": session.role})

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        session = self._session(request)
        method = METHODS.get("{service}/{method}".format(**request.match_info))
        if method is None:
            return _failure(404, "UNIMPLEMENTED", "")
        try:
            asked = read(await _body(request), method.request())
            if method.streams:
                return await self._stream(request, method, asked, session)
            return _json(plain(await self._api.call(method, asked, session.token)))
        except UnreadableRequestError as error:
            return _failure(400, "INVALID_ARGUMENT", str(error))
        except aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                self._sessions.end(request.cookies.get(COOKIE, ""))
            return _refused(error)

    async def _stream(
        self, request: web.Request, method: Method, asked: Any, session: Session
    ) -> web.StreamResponse:
        """Send each answer as a line of JSON, from the first on; what is refused before is an error."""
        answers = self._api.stream(method, asked, session.token)
        response = web.StreamResponse(headers={"content-type": "application/x-ndjson"})
        async with contextlib.aclosing(answers):
            try:
                async for answer in answers:
                    if not response.prepared:
                        await response.prepare(request)
                    await response.write(msgspec.json.encode(plain(answer)) + b"\n")
            except aio.AioRpcError as error:
                if not response.prepared:
                    raise
                line = {"error": error.code().name, "detail": error.details()}
                await response.write(msgspec.json.encode(line) + b"\n")
        if not response.prepared:
            await response.prepare(request)
        await response.write_eof()
        return response

    async def _live(self, request: web.Request) -> web.WebSocketResponse:
        self._session(request)
        socket = web.WebSocketResponse(heartbeat=20, max_msg_size=4096)
        await socket.prepare(request)
        self._sockets.add(socket)
        telling = asyncio.ensure_future(self._tell(socket, request.cookies.get(COOKIE, "")))
        try:
            async for _ in socket:  # browsers have nothing to say; this ends when they leave
                continue
        finally:
            telling.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await telling
        return socket

    async def _tell(self, socket: web.WebSocketResponse, name: str) -> None:
        """Send the whole history, then what is new, while the session lasts."""
        verified, told = self._clock(), 0
        while (session := self._sessions.find(name)) is not None:
            points = self._watch.history.since(told)
            told = max((each[-1].at for each in points.values() if each), default=told)
            state = self._watch.state
            message = {
                "problem": self._watch.problem,
                "state": None if state is None else plain(state),
                "points": points,
            }
            await socket.send_str(msgspec.json.encode(message).decode())
            if self._clock() - verified > _VERIFY_SECONDS:
                verified = self._clock()
                await self._verify(name, session)
            await self._watch.news(_NEWS_SECONDS)
        await socket.close(code=LOGGED_OUT)

    async def _verify(self, name: str, session: Session) -> None:
        """End a session whose token has been taken back."""
        try:
            await self._api.caller(session.token)
        except aio.AioRpcError as error:
            if error.code() in _NO_TOKEN:
                self._sessions.end(name)

    def _session(self, request: web.Request) -> Session:
        session = self._sessions.find(request.cookies.get(COOKIE, ""))
        if session is None:
            raise web.HTTPUnauthorized(
                text='{"error":"UNAUTHENTICATED","detail":""}', content_type="application/json"
            )
        return session

    async def _close_sockets(self, _: web.Application) -> None:
        for socket in set(self._sockets):
            await socket.close(code=WSCloseCode.GOING_AWAY)


def preferred_language(header: str) -> str:
    """Return ``zh`` or ``en`` by an ``accept-language`` header; ``en`` where it wants neither."""
    best, language = 0.0, "en"
    for part in header.split(","):
        name, _, quality = part.strip().lower().partition(";q=")
        short = name.partition("-")[0]
        try:
            weight = float(quality) if quality else 1.0
        except ValueError:
            continue
        if short in ("zh", "en") and weight > best:
            best, language = weight, short
    return language


async def _body(request: web.Request) -> dict[str, Any]:
    """Return a request's JSON object, or answer what is wrong with it."""
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="send application/json\n")
    try:
        return msgspec.json.decode(await request.read(), type=dict[str, Any])
    except msgspec.DecodeError:
        raise web.HTTPBadRequest(text="send a JSON object\n") from None


def _may_be_token(token: object) -> TypeGuard[str]:
    """Say whether it can stand in a header at all."""
    return (
        isinstance(token, str)
        and 0 < len(token) <= _LONGEST_TOKEN
        and token.isascii()
        and token.isprintable()
    )


def _json(data: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    body = msgspec.json.encode(data)
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


def _failure(
    status: int, code: str, detail: str, headers: dict[str, str] | None = None
) -> web.Response:
    return _json({"error": code, "detail": detail}, status, headers)


def _refused(error: aio.AioRpcError) -> web.Response:
    status = _STATUS.get(error.code(), 502)
    return _failure(status, error.code().name, error.details() or "")
