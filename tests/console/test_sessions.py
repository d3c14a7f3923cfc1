"""Who is logged in, and who tries too often."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.console.attempts import Attempts
from extproc.console.sessions import IDLE_SECONDS, LONGEST_SECONDS, Sessions


class TestSessions:
    def test_only_the_name_opens_one_and_only_until_it_is_ended(self, clock: Any) -> None:
        sessions = Sessions(clock)
        name = sessions.begin("the token", "ann", "operator")
        found = sessions.find(name)
        assert found is not None
        assert (found.who, found.role, found.token) == ("ann", "operator", "the token")
        assert "the token" not in repr(found)
        assert name not in repr(vars(sessions))
        assert [sessions.find(each) for each in ("", "guess", name[:-1])] == [None, None, None]
        sessions.end(name)
        assert sessions.find(name) is None

    def test_one_that_is_not_used_ends(self, clock: Any) -> None:
        sessions = Sessions(clock)
        name = sessions.begin("t", "wall", "viewer")
        for _ in range(20):
            clock.now += IDLE_SECONDS
            assert sessions.find(name) is not None, "a wallboard stays on"
        clock.now += IDLE_SECONDS + 1
        assert sessions.find(name) is None

    @pytest.mark.parametrize("role", ["operator", "admin"])
    def test_one_that_may_change_something_ends_in_any_case(self, clock: Any, role: str) -> None:
        sessions = Sessions(clock)
        name = sessions.begin("t", "ann", role)
        clock.now += LONGEST_SECONDS / 2
        assert sessions.find(name) is not None
        clock.now += LONGEST_SECONDS / 2 + 1
        assert sessions.find(name) is None

    def test_there_are_at_most_a_thousand(self, clock: Any) -> None:
        sessions = Sessions(clock)
        first, second = (sessions.begin("t", "ann", "viewer") for _ in range(2))
        clock.now += 1
        sessions.find(first)
        for _ in range(999):
            sessions.begin("t", "ann", "viewer")
        assert sessions.find(first) is not None
        assert sessions.find(second) is None, "the one that was used least lately"


class TestAttempts:
    def test_five_at_once_then_one_every_six_seconds(self, clock: Any) -> None:
        attempts = Attempts(clock)
        assert [attempts.take("a") for _ in range(7)] == [0, 0, 0, 0, 0, 6, 6]
        assert attempts.take("b") == 0, "others are not held up"
        clock.now += 6
        assert [attempts.take("a"), attempts.take("a")] == [0, 6]
        clock.now += 3600
        assert [attempts.take("a") for _ in range(6)] == [0, 0, 0, 0, 0, 6]

    def test_whoever_succeeds_has_not_failed(self, clock: Any) -> None:
        attempts = Attempts(clock)
        for _ in range(50):
            assert attempts.take("a") == 0
            attempts.give_back("a")
        attempts.give_back("never came")

    def test_a_host_has_one_ipv6_network(self, clock: Any) -> None:
        attempts = Attempts(clock)
        assert sum(attempts.take(f"2001:db8::{each:x}") == 0 for each in range(20)) == 5
        assert attempts.take("2001:db8:0:1::1") == 0

    def test_a_thousand_addresses_are_remembered(self, clock: Any) -> None:
        attempts = Attempts(clock)
        for each in range(3000):
            attempts.take(f"host-{each}")
        assert len(attempts._full_at) == 1000
