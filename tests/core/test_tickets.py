"""Tickets: good once, for the same call of the same tenant, within their time."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.tickets import Subject, TicketEvent, Tickets, fingerprint

KEY = b"a key that is long enough to test"
CALL = Subject("shop", "P1", 1, "user 7", fingerprint(b'{"model": "qwen"}'))
NOW = 1_796_075_036.5


def tickets(key: bytes = KEY, capacity: int = 100) -> Tickets:
    return Tickets(key, window=60.0, capacity=capacity)


def issue(made: Tickets, subject: Subject = CALL, *, ident: str = "x1", now: float = NOW) -> str:
    return made.issue(subject, ident=ident, arrived=now - 3.25, now=now)


def test_a_ticket_brings_back_the_first_arrival_once() -> None:
    made = tickets()
    token = issue(made)

    assert made.redeem(CALL, token, NOW + 15) == NOW - 3.25
    assert made.redeem(CALL, token, NOW + 16) is None
    assert made.events == {
        TicketEvent.ISSUED: 1,
        TicketEvent.REDEEMED: 1,
        TicketEvent.REUSED: 1,
    }


def test_a_token_is_short_and_tells_nothing_of_the_caller() -> None:
    token = issue(tickets())

    assert len(token) == 56
    assert token.replace("-", "").replace("_", "").isalnum()
    raw = base64.urlsafe_b64decode(token)
    assert b"shop" not in raw
    assert CALL.fingerprint not in raw


def test_without_its_token_a_call_is_recognised_once() -> None:
    made = tickets()
    token = issue(made)

    assert made.redeem(CALL, "", NOW + 15) == NOW - 3.25
    assert made.redeem(CALL, "", NOW + 15) is None
    assert made.redeem(CALL, token, NOW + 15) is None, "the token is the same ticket"
    assert made.events[TicketEvent.RECOGNISED] == 1
    assert made.events[TicketEvent.REUSED] == 1


def test_two_equal_calls_have_two_tickets() -> None:
    made = tickets()
    issue(made, ident="x1", now=NOW)
    second = issue(made, ident="x2", now=NOW + 1)

    assert made.redeem(CALL, second, NOW + 15) == NOW - 2.25
    assert made.redeem(CALL, "", NOW + 15) == NOW - 3.25
    assert made.redeem(CALL, "", NOW + 15) is None


OTHERS = [
    replace(CALL, tenant="other"),
    replace(CALL, service_class="P0"),
    replace(CALL, fingerprint=fingerprint(b"another body")),
]


@pytest.mark.parametrize("other", OTHERS)
def test_a_foreign_ticket_is_ignored(other: Subject) -> None:
    made = tickets()
    token = issue(made)

    assert made.redeem(other, token, NOW) is None
    assert made.redeem(CALL, token, NOW) is not None, "and still good for its owner"
    assert made.events[TicketEvent.INVALID] == 1


@pytest.mark.parametrize("other", [*OTHERS, replace(CALL, session="user 8")])
def test_another_call_is_not_recognised(other: Subject) -> None:
    made = tickets()
    issue(made)

    assert made.redeem(other, "", NOW) is None


def test_names_cannot_be_cut_another_way() -> None:
    made = tickets()
    issue(made, replace(CALL, tenant="a", service_class="bc"))

    assert made.redeem(replace(CALL, tenant="ab", service_class="c"), "", NOW) is None


def test_an_expired_ticket_is_ignored() -> None:
    made = tickets()
    token = issue(made)

    assert made.redeem(CALL, token, NOW + 60) is None
    assert made.events == {
        TicketEvent.ISSUED: 1,
        TicketEvent.LAPSED: 1,
        TicketEvent.EXPIRED: 1,
    }
    assert len(made) == 0


def test_a_clock_that_steps_back_makes_nothing_good_again() -> None:
    made = tickets()
    issue(made, replace(CALL, session="another"), ident="later", now=NOW + 100)
    token = issue(made, ident="earlier", now=NOW)
    issue(made, ident="last", now=NOW + 101)

    assert made.redeem(CALL, token, NOW + 70) == NOW + 101 - 3.25
    assert made.redeem(CALL, "", NOW + 70) is None
    assert made.events[TicketEvent.EXPIRED] == 1


def test_tickets_outlive_a_process_with_their_key_and_not_without() -> None:
    token = issue(tickets())

    restarted = tickets()
    assert restarted.redeem(CALL, token, NOW + 15) == NOW - 3.25
    assert restarted.redeem(CALL, token, NOW + 15) is None
    assert tickets(b"another key").redeem(CALL, token, NOW + 15) is None


@pytest.mark.parametrize("token", ["", "x", "A" * 56, "A" * 100_000, "é" * 56, "a,b", "=" * 56])
def test_what_is_no_ticket_is_ignored(token: str) -> None:
    assert tickets().redeem(CALL, token, NOW) is None


@given(position=st.integers(0, 55), character=st.sampled_from("ABCabc019-_"))
def test_a_ticket_that_was_changed_anywhere_is_ignored(position: int, character: str) -> None:
    made = tickets()
    token = issue(made)
    changed = token[:position] + character + token[position + 1 :]
    made.redeem(CALL, "", NOW)

    assert made.redeem(CALL, changed, NOW) is None
    assert made.events[TicketEvent.REUSED if changed == token else TicketEvent.INVALID] == 1


@given(st.text(max_size=80))
def test_any_text_is_ignored(text: str) -> None:
    assert tickets().redeem(CALL, text, NOW) is None


def test_memory_is_bounded_and_a_forgotten_ticket_is_good_by_its_token() -> None:
    made = tickets(capacity=2)
    tokens = [
        issue(made, replace(CALL, session=str(number)), ident=str(number)) for number in "abc"
    ]

    assert repr(made) == "<Tickets 2 open, 0 used>"
    assert made.redeem(replace(CALL, session="a"), "", NOW) is None
    assert made.redeem(CALL, tokens[0], NOW) is not None
    assert made.redeem(CALL, tokens[1], NOW) is not None
    assert made.redeem(CALL, tokens[2], NOW) is None, "that it was used could not be remembered"
    assert made.redeem(replace(CALL, session="c"), "", NOW) is None
    assert made.events[TicketEvent.OVERFLOWED] == 2
    assert made.redeem(CALL, "", NOW + 60) is None
    assert repr(made) == "<Tickets 0 open, 0 used>"


def test_as_many_are_expected_as_are_open_of_a_class_and_those_above() -> None:
    made = tickets()
    for number in range(3):
        issue(made, replace(CALL, rank=number, service_class=f"P{number}"), ident=str(number))

    assert [made.expected(rank) for rank in range(3)] == [1, 2, 3]
    made.redeem(replace(CALL, rank=1, service_class="P1"), "", NOW)
    assert [made.expected(rank) for rank in range(3)] == [1, 1, 2]


def test_fewer_are_expected_where_few_come_back() -> None:
    made = tickets()
    for number in range(100):
        issue(made, ident=str(number))
    assert made.expected(1) == 100

    made.redeem(CALL, "", NOW + 60)
    for number in range(100):
        issue(made, ident=f"again {number}", now=NOW + 60)
    assert made.expected(1) == pytest.approx(100 * 0.98**100)
    for _ in range(90):
        assert made.redeem(CALL, "", NOW + 61) is not None
    assert made.expected(1) == pytest.approx(10 * (1 - (1 - 0.98**100) * 0.98**90))
