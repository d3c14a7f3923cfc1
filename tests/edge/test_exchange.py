"""The exchange as a state machine: every order of messages, a close at every point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from extproc.edge.exchange import Exchange, Judgement, Resolution, State
from extproc.edge.messages import (
    Answer,
    Continue,
    Event,
    Forward,
    LabelResponse,
    Phase,
    Stream,
)

BODIES = {
    "admit": b"a",
    "shed": b"s",
    "pass": b"p",
    "wait": b"w",
    "edit": b"e",
    "replace": b"r",
    "revocable": b"v",
}


def never(_resolution: Resolution) -> None:
    raise AssertionError("nothing waits here")


def headers(path: str = "/v1/chat/completions") -> Event:
    return Event(Phase.REQUEST_HEADERS, {"x": "from headers"}, path=path, request_id="r1")


def body(kind: str = "admit") -> Event:
    return Event(
        Phase.REQUEST_BODY,
        {"x": "from attributes"},
        path="/p",
        body=BODIES[kind],
        end_of_stream=True,
    )


def response() -> Event:
    return Event(Phase.RESPONSE_HEADERS, {":status": "200"})


def part(content: bytes, *, last: bool = False) -> Event:
    return Event(Phase.RESPONSE_BODY, body=content, end_of_stream=last)


def test_attributes_with_the_body_are_enough(gatekeeper: Any) -> None:
    exchange = Exchange(gatekeeper, never)

    reply = exchange.receive(body())

    assert reply == Forward(b"rewritten", (("content-length", "9"),), metadata=(("id", "x1"),))
    assert exchange.state is State.FORWARDED
    assert repr(exchange) == "<Exchange forwarded, holds ('x1', 'pool')>"
    assert gatekeeper.judged[0].headers == {"x": "from attributes"}
    assert gatekeeper.judged[0].path == "/p"
    assert exchange.receive(response()) == LabelResponse((("x-tidegate-verdict", "admit"),))
    exchange.close()
    assert gatekeeper.held == set()


def test_an_answer_is_told_once_and_only_to_what_is_held(gatekeeper: Any) -> None:
    answer = Event(Phase.RESPONSE_HEADERS, {":status": "200"}, upstream="10.0.0.1:8000")
    held, passed = Exchange(gatekeeper, never), Exchange(gatekeeper, never)

    held.receive(body())
    held.receive(answer)
    held.receive(answer)
    passed.receive(body("pass"))
    passed.receive(answer)

    assert gatekeeper.answers == [("x1", answer)]


def test_headers_in_a_message_of_their_own_are_used(gatekeeper: Any) -> None:
    exchange = Exchange(gatekeeper, never)

    assert exchange.receive(headers("/v1/completions")) == Continue(Phase.REQUEST_HEADERS)
    exchange.receive(body())

    request = gatekeeper.judged[0]
    assert (request.path, request.request_id, request.body) == ("/v1/completions", "r1", b"a")
    assert request.headers == {"x": "from headers"}


def test_a_shed_request_is_answered_and_holds_nothing(gatekeeper: Any) -> None:
    exchange = Exchange(gatekeeper, never)

    reply = exchange.receive(body("shed"))

    assert reply == Answer(200, (("content-type", "application/json"),), b"{}")
    assert exchange.state is State.ANSWERED
    # Should our own answer come back through the response phase, it is left as it is.
    assert exchange.receive(response()) == Continue(Phase.RESPONSE_HEADERS)
    exchange.close()
    assert gatekeeper.released == []


def test_a_passed_request_gets_no_labels(gatekeeper: Any) -> None:
    exchange = Exchange(gatekeeper, never)

    assert exchange.receive(body("pass")) == Forward()
    assert exchange.receive(response()) == Continue(Phase.RESPONSE_HEADERS)


def test_a_response_without_a_request_is_continued(gatekeeper: Any) -> None:
    """Envoy's own 413 or 504 reaches us as response headers, with nothing before them."""
    exchange = Exchange(gatekeeper, never)

    assert exchange.receive(response()) == Continue(Phase.RESPONSE_HEADERS)
    assert exchange.state is State.START
    exchange.close()
    assert gatekeeper.judged == []


class Waiting:
    """An exchange whose gatekeeper wants time, and what it is given in the end."""

    def __init__(self, gatekeeper: Any) -> None:
        self.gatekeeper = gatekeeper
        self.resolutions: list[Resolution] = []
        self.exchange = Exchange(gatekeeper, self.resolutions.append)
        assert self.exchange.receive(body("wait")) is None
        assert self.exchange.state is State.WAITING

    def resume(self) -> object:
        (resolution,) = self.resolutions
        return self.exchange.resume(resolution)


def test_a_waiting_request_is_forwarded_when_its_turn_comes(gatekeeper: Any) -> None:
    at = Waiting(gatekeeper)
    assert repr(at.exchange) == "<Exchange waiting, holds ('x1', 'pool')>"

    gatekeeper.let_in("x1")

    assert isinstance(at.resume(), Forward)
    assert at.exchange.state is State.FORWARDED
    assert at.exchange.receive(response()) == LabelResponse((("x-tidegate-verdict", "admit"),))
    at.exchange.close()
    assert gatekeeper.released == ["x1"]


def test_a_waiting_request_is_answered_when_it_waited_in_vain(gatekeeper: Any) -> None:
    at = Waiting(gatekeeper)

    gatekeeper.turn_away("x1")

    assert isinstance(at.resume(), Answer)
    assert at.exchange.state is State.ANSWERED
    at.exchange.close()
    assert gatekeeper.released == []


def test_who_leaves_while_waiting_leaves_the_queue_at_once(gatekeeper: Any) -> None:
    at = Waiting(gatekeeper)

    at.exchange.close()

    assert (gatekeeper.waiting, gatekeeper.held) == ({}, set())
    assert at.resolutions == []


def test_who_leaves_between_its_turn_and_its_reply_gives_the_place_back(gatekeeper: Any) -> None:
    at = Waiting(gatekeeper)
    gatekeeper.let_in("x1")

    at.exchange.close()

    assert gatekeeper.held == set()
    assert gatekeeper.released == ["x1"]


@pytest.mark.parametrize("turn_came", [False, True])
def test_when_envoy_answers_by_itself_the_wait_is_over(gatekeeper: Any, turn_came: bool) -> None:
    at = Waiting(gatekeeper)
    if turn_came:
        gatekeeper.let_in("x1")

    assert at.exchange.receive(response()) == Continue(Phase.RESPONSE_HEADERS)

    assert at.exchange.state is State.ANSWERED
    assert (gatekeeper.waiting, gatekeeper.held) == ({}, set())
    at.exchange.close()
    assert gatekeeper.released == ["x1"]


def test_a_gatekeeper_may_ask_for_time_once(gatekeeper: Any) -> None:
    at = Waiting(gatekeeper)

    reply = at.exchange.resume(lambda: Judgement(None, hold=("x1", "pool")))

    assert isinstance(reply, Answer)
    assert reply.status == 500
    assert gatekeeper.held == set()


class TestEditing:
    """The response passes through an editor, who may end it."""

    @staticmethod
    def responding(gatekeeper: Any) -> Exchange:
        exchange = Exchange(gatekeeper, never)
        exchange.receive(body("edit"))
        assert exchange.receive(response()) == LabelResponse(
            (("x-tidegate-verdict", "admit"),), stream=True
        )
        assert exchange.state is State.EDITING
        return exchange

    def test_what_the_editor_says_goes_to_the_client(self, gatekeeper: Any) -> None:
        exchange = self.responding(gatekeeper)

        assert exchange.receive(part(b"one")) == Stream(b"ONE")
        assert exchange.receive(part(b"--")) is None, "nothing to say yet"
        assert exchange.receive(part(b"two", last=True)) == Stream(b"TWO", end_of_stream=True)
        assert exchange.state is State.ENDED

    def test_what_passes_without_labels_can_be_edited_as_well(self, gatekeeper: Any) -> None:
        gatekeeper.labels = None
        exchange = Exchange(gatekeeper, never)
        exchange.receive(body("edit"))

        assert exchange.receive(response()) == LabelResponse(stream=True)

    def test_an_end_without_a_byte_is_an_end(self, gatekeeper: Any) -> None:
        exchange = self.responding(gatekeeper)

        assert exchange.receive(part(b"", last=True)) == Stream(b"", end_of_stream=True)

    def test_the_editor_ends_it_and_nothing_more_is_said(self, gatekeeper: Any) -> None:
        exchange = self.responding(gatekeeper)

        assert exchange.receive(part(b"stop! more")) == Stream(b"STOP!", end_of_stream=True)
        assert exchange.state is State.ENDED
        assert exchange.receive(part(b"more")) is None
        assert exchange.receive(part(b"", last=True)) is None
        exchange.close()
        assert gatekeeper.released == ["x1"]

    def test_a_body_that_nobody_asked_for_is_left_alone(self, gatekeeper: Any) -> None:
        exchange = Exchange(gatekeeper, never)
        exchange.receive(body())
        exchange.receive(response())

        assert exchange.receive(part(b"one")) == Continue(Phase.RESPONSE_BODY)


def test_an_answer_can_be_replaced_while_only_its_headers_are_there(gatekeeper: Any) -> None:
    exchange = Exchange(gatekeeper, never)
    exchange.receive(body("replace"))

    reply = exchange.receive(response())

    assert reply == Answer(200, (("content-type", "application/json"),), b"{}")
    assert exchange.state is State.ANSWERED
    # Should our own answer come back through the response phase, it is left as it is.
    assert exchange.receive(response()) == Continue(Phase.RESPONSE_HEADERS)
    assert len(gatekeeper.answers) == 1
    exchange.close()
    assert gatekeeper.released == ["x1"]


class TestRevoked:
    """An admitted call is answered by us after all, because the engine has not."""

    def test_before_the_engine_answers(self, gatekeeper: Any) -> None:
        resolutions: list[Resolution] = []
        exchange = Exchange(gatekeeper, resolutions.append)
        assert isinstance(exchange.receive(body("revocable")), Forward)
        assert exchange.listens

        gatekeeper.revoke("x1")

        assert isinstance(exchange.resume(*resolutions), Answer)
        assert exchange.state is State.ANSWERED
        assert gatekeeper.held == {"x1"}, "until Envoy has ended it"
        exchange.close()
        assert gatekeeper.released == ["x1"]

    def test_not_once_it_has_answered(self, gatekeeper: Any) -> None:
        exchange = Exchange(gatekeeper, never)
        exchange.receive(body("revocable"))

        exchange.receive(response())

        assert not exchange.listens

    def test_not_unless_it_was_said_beforehand(self, gatekeeper: Any) -> None:
        exchange = Exchange(gatekeeper, never)

        exchange.receive(body())

        assert not exchange.listens


def test_a_body_that_comes_once_more_is_no_way_past_the_queue(gatekeeper: Any) -> None:
    """Envoy is known to send the end of a long body twice in another mode than ours."""
    at = Waiting(gatekeeper)

    assert at.exchange.receive(body("wait")) is None
    assert at.exchange.receive(body("admit")) is None

    assert at.exchange.state is State.WAITING
    assert len(gatekeeper.judged) == 1
    gatekeeper.let_in("x1")
    assert isinstance(at.resume(), Forward)
    assert at.exchange.receive(body("admit")) == Continue(Phase.REQUEST_BODY)
    assert len(gatekeeper.judged) == 1


EVENTS: dict[str, Callable[[], Event]] = {
    "request headers": headers,
    "body: admit": lambda: body("admit"),
    "body: shed": lambda: body("shed"),
    "body: pass": lambda: body("pass"),
    "body: wait": lambda: body("wait"),
    "body: edit": lambda: body("edit"),
    "body: replace": lambda: body("replace"),
    "body: revocable": lambda: body("revocable"),
    "request trailers": lambda: Event(Phase.REQUEST_TRAILERS),
    "response headers": response,
    "response body": lambda: part(b"x"),
    "response body: stop": lambda: part(b"x!"),
    "response body: end": lambda: part(b"x", last=True),
    "response trailers": lambda: Event(Phase.RESPONSE_TRAILERS),
}

# What each state becomes by each event; what is not listed leaves the state as it is.
TRANSITIONS = {
    (State.START, "request headers"): State.HEADERS,
    (State.START, "body: admit"): State.FORWARDED,
    (State.START, "body: shed"): State.ANSWERED,
    (State.START, "body: pass"): State.FORWARDED,
    (State.START, "body: wait"): State.WAITING,
    (State.HEADERS, "body: wait"): State.WAITING,
    (State.WAITING, "response headers"): State.ANSWERED,
    (State.HEADERS, "body: admit"): State.FORWARDED,
    (State.HEADERS, "body: shed"): State.ANSWERED,
    (State.HEADERS, "body: pass"): State.FORWARDED,
    (State.FORWARDED, "response headers"): State.RESPONDING,
    (State.EDITING, "response body: stop"): State.ENDED,
    (State.EDITING, "response body: end"): State.ENDED,
    **{
        (state, f"body: {kind}"): State.FORWARDED
        for state in (State.START, State.HEADERS)
        for kind in ("edit", "replace", "revocable")
    },
}
WAYS = {
    State.START: [],
    State.HEADERS: ["request headers"],
    State.WAITING: ["body: wait"],
    State.FORWARDED: ["body: admit"],
    State.RESPONDING: ["body: admit", "response headers"],
    State.EDITING: ["body: edit", "response headers"],
    State.ENDED: ["body: edit", "response headers", "response body: stop"],
    State.ANSWERED: ["body: shed"],
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("state", WAYS)
def test_every_state_times_every_event(gatekeeper: Any, state: State, event: str) -> None:
    exchange = Exchange(gatekeeper, never)
    for each in WAYS[state]:
        exchange.receive(EVENTS[each]())
    assert exchange.state is state

    exchange.receive(EVENTS[event]())

    assert exchange.state is TRANSITIONS.get((state, event), state)
    exchange.close()
    exchange.close()
    assert exchange.state is State.CLOSED
    assert gatekeeper.held == set()


def phases_of(reply: object) -> set[Phase]:
    """Return the phases that a reply may answer; none is for what waits and for what is edited."""
    match reply:
        case Continue(phase):
            return {phase}
        case LabelResponse():
            return {Phase.RESPONSE_HEADERS}
        case Stream():
            return {Phase.RESPONSE_BODY}
        case Answer():
            return {Phase.REQUEST_BODY, Phase.RESPONSE_HEADERS}
        case Forward():
            return {Phase.REQUEST_BODY}
        case _:
            return {Phase.REQUEST_BODY, Phase.RESPONSE_BODY}


TURNS = ("its turn comes", "it waited in vain", "it is revoked")


@given(st.lists(st.sampled_from([*sorted(EVENTS), *TURNS]), max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_gets_a_reply_of_its_own_phase_and_nothing_stays_held(
    new_gatekeeper: Any, order: list[str]
) -> None:
    gatekeeper = new_gatekeeper()
    resolutions: list[Resolution] = []
    exchange = Exchange(gatekeeper, resolutions.append)
    owed = ended = 0
    for name in order:
        if name in TURNS:
            turn = (gatekeeper.let_in, gatekeeper.turn_away, gatekeeper.revoke)[TURNS.index(name)]
            for ident in list(gatekeeper.revocable if name == TURNS[2] else gatekeeper.waiting):
                turn(ident)
            if resolutions and exchange.listens:
                owed -= exchange.state is State.WAITING
                assert isinstance(exchange.resume(resolutions.pop()), Forward | Answer)
            resolutions.clear()
            continue
        event = EVENTS[name]()
        waited = exchange.state is State.WAITING
        edited = exchange.state in (State.EDITING, State.ENDED)
        reply = exchange.receive(event)
        owed += exchange.state is State.WAITING and not waited
        assert event.phase in phases_of(reply)
        assert isinstance(reply, Stream) <= edited, "a streamed reply fails what is not streamed"
        ended += isinstance(reply, Stream) and reply.end_of_stream
        assert len(gatekeeper.held) <= 1
    assert len(gatekeeper.judged) <= 1, "asked once per exchange"
    assert len(gatekeeper.answers) <= 1
    assert ended <= 1, "nothing follows an end"
    assert owed == (exchange.state is State.WAITING) or exchange.state is State.ANSWERED
    exchange.close()
    assert gatekeeper.held == set()
    assert gatekeeper.waiting == {}
    assert not any(gatekeeper.faults.counts.values())
