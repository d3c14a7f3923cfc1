"""What keeps other sites out.

Rules this module keeps:

* Only requests for an address of ours are answered: a foreign name that resolves to us (DNS
  rebinding) gets 421.
* What changes something, and the websocket, must come from a page of ours: ``Origin`` says so. Where
  it does not, or is not there, the answer is 403. ``SameSite`` alone takes other ports of the
  same host for the same site.
* Scripts and styles are files of ours, and nothing else is: no inline code, no ``eval``, no frames.
"""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from yarl import URL

_LOOPBACK = ("127.0.0.1", "localhost", "::1")

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
        " require-trusted-types-for 'script'; trusted-types lit-html"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class ExposedError(ValueError):
    """The console may not be served like that; the text says what to do."""


def origins(host: str, port: int, *, encrypted: bool, url: str | None) -> frozenset[str]:
    """Return the origins of our pages.

    Args:
        host: where the console listens.
        port: where there.
        encrypted: it speaks TLS itself.
        url: where browsers find it, if not there: a proxy's address, or a name.

    Raises:
        ExposedError: nobody could know where it is, or tokens would cross a network in the clear.
    """
    found = set()
    if url is not None:
        parsed = URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.host or parsed.path != "/":
            raise ExposedError(f"--url {url}: give an origin, such as https://console.example")
        found.add(str(parsed.origin()))
    local = host in _LOOPBACK
    if local:
        scheme = "https" if encrypted else "http"
        found |= {str(URL.build(scheme=scheme, host=each, port=port)) for each in _LOOPBACK}
    elif url is None:
        raise ExposedError(f"listening on {host}: say with --url where browsers find the console")
    elif not encrypted and not url.startswith("https:"):
        raise ExposedError(
            f"listening on {host} without TLS: give --certificate and --key, or an https --url of"
            " the proxy before it"
        )
    return frozenset(found)


class Guard:
    """Refuses what does not come to us, or not from us.

    Args:
        allowed: the origins of our pages.
    """

    def __init__(self, allowed: Iterable[str]) -> None:
        self._by_host = {URL(each).host_port_subcomponent: each for each in allowed}

    def origin(self, request: web.Request) -> str | None:
        """Return the origin of ours that a request is for, or None."""
        return self._by_host.get(request.host.lower())

    def middleware(self) -> Middleware:
        """Return what aiohttp asks before each handler."""

        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            origin = self.origin(request)
            if origin is None:
                raise web.HTTPMisdirectedRequest(text="this console is not at that address\n")
            looks = request.method in ("GET", "HEAD") and "upgrade" not in request.headers
            if not looks and request.headers.get("origin") != origin:
                raise web.HTTPForbidden(text="this must come from the console's own page\n")
            return await handler(request)

        return check


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add what every response carries; for `web.Application.on_response_prepare`."""
    response.headers.update(HEADERS)
    response.headers.setdefault("cache-control", "no-store")
