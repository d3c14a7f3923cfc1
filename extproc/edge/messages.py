"""What passes between Envoy and an exchange, free of protobuf: events in, replies out.

Events are what Envoy says; each waits for one reply, but for those of a response's body that we asked
for: what goes to the client in its place, and when, is ours to say. Replies are what the exchange answers. All are
`msgspec.Struct`: one of each is made for every message, and those are made at a tenth of the cost of
a frozen dataclass.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec


class Phase(Enum):
    """The stations of an HTTP exchange at which Envoy asks us."""

    REQUEST_HEADERS = "request_headers"
    REQUEST_BODY = "request_body"
    REQUEST_TRAILERS = "request_trailers"
    RESPONSE_HEADERS = "response_headers"
    RESPONSE_BODY = "response_body"
    RESPONSE_TRAILERS = "response_trailers"


class Event(msgspec.Struct, gc=False):
    """One message from Envoy.

    Attributes:
        phase: which station it belongs to.
        headers: request or response headers by lower-case name, doubled ones joined by a comma;
            beside a request body they are those that Envoy sent along as attributes.
        path: the request's path with its query, where the message tells it, else "".
        request_id: Envoy's ``x-request-id``, where the message tells it, else "".
        metadata: other filters' dynamic metadata by namespace, as plain values.
        body: the body or a part of it.
        end_of_stream: nothing follows in this direction.
        upstream: ``ip:port`` of the engine that answers, where the message tells it, else "".
        details: how Envoy came to a response, where the message tells it, else "".
    """

    phase: Phase
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    path: str = ""
    request_id: str = ""
    metadata: Mapping[str, object] = msgspec.field(default_factory=dict)
    body: bytes = b""
    end_of_stream: bool = False
    upstream: str = ""
    details: str = ""


class Continue(msgspec.Struct, frozen=True, gc=False):
    """Go on unchanged."""

    phase: Phase


class Forward(msgspec.Struct, frozen=True, gc=False):
    """Send the request on to the engine.

    Attributes:
        body: the body in place of the client's, or None to leave it byte for byte.
        set_headers: request headers to set.
        clear_route: choose the route anew, because a header that decides it was set.
        metadata: dynamic metadata under our own namespace; the id comes first, the rest repeats.
        endpoint: ``ip:port`` of the engine that Envoy's balancer should take, or None.
    """

    body: bytes | None = None
    set_headers: tuple[tuple[str, str], ...] = ()
    clear_route: bool = False
    metadata: tuple[tuple[str, str], ...] = ()
    endpoint: str | None = None


class Answer(msgspec.Struct, frozen=True, gc=False):
    """Answer the client at once; the engine never sees the request.

    Attributes:
        status: of the HTTP response.
        headers: such as other answers have as well.
        body: of the HTTP response.
        metadata: see `Forward`.
        unique_headers: headers that no other answer has.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    metadata: tuple[tuple[str, str], ...] = ()
    unique_headers: tuple[tuple[str, str], ...] = ()


class LabelResponse(msgspec.Struct, frozen=True, gc=False):
    """Set headers on the engine's response and go on.

    Attributes:
        set_headers: of the response.
        stream: send us the response's body, and the client only what we reply to it.
        unique_headers: of the response, such as no other response has.
    """

    set_headers: tuple[tuple[str, str], ...] = ()
    stream: bool = False
    unique_headers: tuple[tuple[str, str], ...] = ()


class Stream(msgspec.Struct, frozen=True, gc=False):
    """Send the client these bytes of the response's body.

    Attributes:
        data: the next bytes.
        end_of_stream: they are the last ones. Should the engine not be done, Envoy leaves it.
    """

    data: bytes
    end_of_stream: bool = False


class Extend(msgspec.Struct, frozen=True, gc=False):
    """Wait longer for the reply to this message than ``message_timeout`` says; once for each message.

    Attributes:
        seconds: from now on; as long as the filter's ``max_message_timeout`` at most.
    """

    seconds: float


Reply = Continue | Forward | Answer | LabelResponse | Stream | Extend
