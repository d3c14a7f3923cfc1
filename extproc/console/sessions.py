"""Who is logged in.

Rules this module keeps:

* A session is named by 256 random bits that only the browser has; here lies their SHA-256.
* It ends after `IDLE_SECONDS` without use. One that may change something ends after `LONGEST_SECONDS` in
  any case: a wallboard that stays on for weeks is a viewer's.
* The token lies in memory only, and in no representation.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

IDLE_SECONDS = 12 * 3600.0
LONGEST_SECONDS = 12 * 3600.0
_MOST = 1000


@dataclass(slots=True)
class Session:
    """Somebody who is logged in: a name and a role as the control API told them."""

    who: str
    role: str
    token: str = field(repr=False)
    began: float
    used: float


class Sessions:
    """All sessions, at most a thousand: the one that was used least lately makes room.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sessions: dict[str, Session] = {}

    def begin(self, token: str, who: str, role: str) -> str:
        """Log somebody in; return the name of the session, for the browser alone."""
        now = self._clock()
        for digest in [key for key, each in self._sessions.items() if self._is_over(each, now)]:
            del self._sessions[digest]
        if len(self._sessions) >= _MOST:
            del self._sessions[min(self._sessions, key=lambda key: self._sessions[key].used)]
        name = secrets.token_urlsafe(32)
        self._sessions[_digest(name)] = Session(who, role, token, now, now)
        return name

    def find(self, name: str) -> Session | None:
        """Return a session, which thereby is used, or None where it has ended or never was."""
        digest, now = _digest(name), self._clock()
        session = self._sessions.get(digest)
        if session is None:
            return None
        if self._is_over(session, now):
            del self._sessions[digest]
            return None
        session.used = now
        return session

    def end(self, name: str) -> None:
        """Log somebody out."""
        self._sessions.pop(_digest(name), None)

    def _is_over(self, session: Session, now: float) -> bool:
        if now - session.used > IDLE_SECONDS:
            return True
        return session.role != "viewer" and now - session.began > LONGEST_SECONDS


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()
