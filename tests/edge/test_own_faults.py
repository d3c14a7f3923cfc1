"""A fault of our own code, injected at each place: what was declared comes of it, and one line in the log."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from extproc.core.faults import Place
from extproc.edge import processor, wire
from extproc.edge.exchange import Exchange, Resolution, State
from extproc.edge.faults import FaultDesk, failing
from extproc.edge.messages import Answer, Continue, Event, Forward, Phase, Stream

CHAT = "/v1/chat/completions"
PRIVATE = b": a prompt that is private"
LABELS = {"x-tidegate-verdict": "reject", "x-tidegate-reason": "internal_error"}


def never(_resolution: Resolution) -> None:
    raise AssertionError("nothing waits here")


def body(kind: bytes) -> Event:
    return Event(Phase.REQUEST_BODY, path=CHAT, body=kind + PRIVATE, end_of_stream=True)


def met(gatekeeper: Any) -> dict[str, int]:
    return {place.value: count for place, count in gatekeeper.faults.counts.items() if count}


def editing(gatekeeper: Any) -> Exchange:
    exchange = Exchange(gatekeeper, never)
    exchange.receive(body(b"e"))
    exchange.receive(Event(Phase.RESPONSE_HEADERS, {":status": "200"}))
    assert exchange.state is State.EDITING
    return exchange


@pytest.mark.parametrize(
    ("path", "error"),
    [
        (CHAT, {"type": "server_error", "param": None, "code": "internal_error"}),
        ("/v1/responses", {"type": "server_error", "param": None, "code": "internal_error"}),
        ("", {"type": "server_error", "param": None, "code": "internal_error"}),
    ],
)
def test_the_refusal_has_the_endpoints_shape(path: str, error: dict[str, Any]) -> None:
    reply = FaultDesk().met(Place.JUDGE, RuntimeError(), path)

    assert isinstance(reply, Answer)
    assert reply.status == 500
    headers = dict(reply.headers)
    assert headers.items() >= LABELS.items()
    assert headers["x-should-retry"] == "false"
    told = json.loads(reply.body)["error"]
    assert told.pop("message").startswith("The gateway failed at this call")
    assert told == error


def test_the_refusal_of_messages_is_anthropics() -> None:
    reply = FaultDesk().met(Place.JUDGE, RuntimeError(), "/v1/messages")

    assert isinstance(reply, Answer)
    assert json.loads(reply.body)["type"] == "error"


def test_requests_pass_where_that_is_declared() -> None:
    assert FaultDesk(pass_on=True).met(Place.JUDGE, RuntimeError(), CHAT) == Forward()


def test_each_fault_is_one_line_that_quotes_nobody(
    gatekeeper: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        Exchange(gatekeeper, never).receive(body(b"f"))

    (record,) = caplog.records
    said = vars(record)
    assert (record.message, said["place"], said["error"]) == (
        "a fault of our own", "judge", "RuntimeError",
    )  # fmt: skip
    assert "in judge" in said["traceback"]
    assert "private" not in str(said)


class TestJudging:
    def test_is_refused(self, gatekeeper: Any) -> None:
        exchange = Exchange(gatekeeper, never)

        reply = exchange.receive(body(b"f"))

        assert isinstance(reply, Answer)
        assert exchange.state is State.ANSWERED
        assert met(gatekeeper) == {"judge": 1}
        assert gatekeeper.held == set()

    def test_passes_where_that_is_declared(self, gatekeeper: Any) -> None:
        gatekeeper.faults = FaultDesk(pass_on=True)
        exchange = Exchange(gatekeeper, never)

        assert exchange.receive(body(b"f")) == Forward()
        assert exchange.state is State.FORWARDED
        response = Event(Phase.RESPONSE_HEADERS, {":status": "200"})
        assert exchange.receive(response) == Continue(Phase.RESPONSE_HEADERS)


class TestConcluding:
    def test_a_call_that_has_waited(self, gatekeeper: Any) -> None:
        ready: list[Resolution] = []
        exchange = Exchange(gatekeeper, ready.append)
        assert exchange.receive(body(b"w")) is None
        gatekeeper.fail("x1")

        reply = exchange.resume(ready.pop())

        assert isinstance(reply, Answer)
        assert exchange.state is State.ANSWERED
        assert (met(gatekeeper), gatekeeper.held) == ({"conclude": 1}, set())

    def test_a_call_that_should_have_been_cut_goes_on(self, gatekeeper: Any) -> None:
        exchange = Exchange(gatekeeper, never)
        exchange.receive(body(b"v"))

        def broken() -> Any:
            raise RuntimeError("a fault of ours")

        assert exchange.resume(broken) is None
        assert repr(exchange) == "<Exchange forwarded, holds ('x1', 'pool')>"
        assert not exchange.listens
        assert (met(gatekeeper), gatekeeper.held) == ({"conclude": 1}, {"x1"})


class TestAnswers:
    def test_an_answer_passes_with_its_labels(self, gatekeeper: Any) -> None:
        exchange = Exchange(gatekeeper, never)
        exchange.receive(body(b"x"))

        reply = exchange.receive(Event(Phase.RESPONSE_HEADERS, {":status": "200"}))

        assert reply == gatekeeper.labels
        assert (exchange.state, met(gatekeeper)) == (State.RESPONDING, {"answer": 1})
        exchange.close()
        assert gatekeeper.held == set()

    def test_a_stream_goes_on_from_what_was_not_passed_on(self, gatekeeper: Any) -> None:
        exchange = editing(gatekeeper)
        part = Event(Phase.RESPONSE_BODY, body=b"what?")

        assert exchange.receive(part) == Stream(b"-what?")
        assert exchange.receive(part) == Stream(b"what?")
        last = Event(Phase.RESPONSE_BODY, body=b"", end_of_stream=True)
        assert exchange.receive(last) == Stream(b"", end_of_stream=True)
        assert (exchange.state, met(gatekeeper)) == (State.ENDED, {"edit": 1})


def test_what_cannot_be_taken_back_ends_all_the_same(gatekeeper: Any) -> None:
    exchange = Exchange(gatekeeper, never)
    exchange.receive(body(b"y"))

    exchange.close()
    exchange.close()

    assert met(gatekeeper) == {"release": 1}


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Break a function of `wire` once."""

    def make(name: str) -> None:
        sound = getattr(wire, name)

        def fail(argument: Any) -> Any:
            monkeypatch.setattr(wire, name, sound)
            raise RuntimeError("a fault of ours")

        monkeypatch.setattr(wire, name, fail)

    return make


def said(exchange: Exchange, **message: Any) -> Any:
    raw = processor._reply(exchange, pb.ProcessingRequest(**message))
    return None if raw is None else pb.ProcessingResponse.FromString(raw)


class TestOnTheWire:
    """Messages that we fail to take apart, and replies that we fail to write."""

    def test_a_request_that_cannot_be_read_is_refused(
        self, gatekeeper: Any, broken: Callable[[str], None]
    ) -> None:
        exchange = Exchange(gatekeeper, never)
        broken("decode")

        reply = said(exchange, request_body=pb.HttpBody(body=b"a"))

        assert reply.immediate_response.status.code == 500
        assert (exchange.state, met(gatekeeper)) == (State.ANSWERED, {"decode": 1})

    @pytest.mark.parametrize("pass_on", [False, True])
    def test_headers_that_cannot_be_read_are_no_way_around_the_gates(
        self, gatekeeper: Any, broken: Callable[[str], None], pass_on: bool
    ) -> None:
        gatekeeper.faults = FaultDesk(pass_on=pass_on)
        exchange = Exchange(gatekeeper, never)
        broken("decode")

        reply = said(exchange, request_headers=pb.HttpHeaders())

        kind = reply.WhichOneof("response")
        assert kind == ("request_headers" if pass_on else "immediate_response")
        if pass_on:
            assert said(exchange, request_body=pb.HttpBody(body=b"a")).HasField("request_body")
            assert gatekeeper.judged == []

    def test_a_response_that_cannot_be_read_passes(
        self, gatekeeper: Any, broken: Callable[[str], None]
    ) -> None:
        exchange = Exchange(gatekeeper, never)
        said(exchange, request_body=pb.HttpBody(body=b"a"))
        broken("decode")

        reply = said(exchange, response_headers=pb.HttpHeaders())

        assert reply.WhichOneof("response") == "response_headers"
        assert (met(gatekeeper), gatekeeper.held) == ({"decode": 1}, {"x1"})

    def test_a_verdict_that_cannot_be_written_is_taken_back(
        self, gatekeeper: Any, broken: Callable[[str], None]
    ) -> None:
        exchange = Exchange(gatekeeper, never)
        broken("encode")

        reply = said(exchange, request_body=pb.HttpBody(body=b"a"))

        assert reply.immediate_response.status.code == 500
        assert (met(gatekeeper), gatekeeper.held) == ({"encode": 1}, set())

    def test_labels_that_cannot_be_written_are_left_out(
        self, gatekeeper: Any, broken: Callable[[str], None]
    ) -> None:
        exchange = Exchange(gatekeeper, never)
        said(exchange, request_body=pb.HttpBody(body=b"e"))
        broken("encode")

        reply = said(exchange, response_headers=pb.HttpHeaders())

        assert reply.WhichOneof("response") == "response_headers"
        assert not reply.HasField("mode_override")
        assert exchange.state is State.RESPONDING

    def test_a_wait_that_ends_in_nothing_to_say_is_left_alone(
        self, gatekeeper: Any, broken: Callable[[str], None]
    ) -> None:
        exchange = Exchange(gatekeeper, never)
        said(exchange, request_body=pb.HttpBody(body=b"a"))
        broken("encode")

        assert processor._encoded(exchange, None, None) is None

    def test_a_message_of_no_known_kind_is_none_of_ours(self, gatekeeper: Any) -> None:
        with pytest.raises(wire.UnknownPhaseError):
            said(Exchange(gatekeeper, never))


def test_a_fault_kept_until_the_reply_is_written_is_raised_there() -> None:
    with pytest.raises(KeyError):
        failing(KeyError())()
