"""Reserved places: what makes "your place is kept" true.

Rules this module keeps:

* A ticket is a signed token. It carries when the call first came, when the ticket expires and a
  number of its own; tenant, class and the body's fingerprint are signed with it and not readable.
  So it is good for the same call of the same tenant only.
* Without the token, a call is known again by tenant, session and fingerprint, among the tickets
  that this process remembers: the newest `CAPACITY`, until they expire.
* A ticket counts once. A call that is shed again gets a new one, which keeps the first arrival.
* A token that is forged, foreign, expired or used is ignored and never an error.
* Times are on the wall clock, because tokens outlive a process. Where the key outlives it as well,
  its tickets are honoured after a restart, at most once by each process that has the key: what was
  used is remembered by the process alone, and no longer than tickets live. Who knows of the other
  processes can hear which tickets are used (`Used`), and see to it that they count once in all.
* Capacity is kept back for as many tickets as are likely to come back, no more: see `expected`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

CAPACITY = 32_768
"""How many tickets that may come back are remembered, and how many that were used."""
RETURN_STEP = 0.02
"""How far one ticket, brought back or not, moves the estimate of the share that comes back."""

_VERSION = 1
_NUMBER = 9
_FIELDS = struct.Struct(f">BQQ{_NUMBER}s")
_SIGNATURE = 16
_LENGTH = _FIELDS.size + _SIGNATURE
_TOKEN_LENGTH = _LENGTH // 3 * 4
"""Characters; the length in bytes is a multiple of three, so there is no padding."""


class TicketEvent(StrEnum):
    """What can become of a ticket, or of what looks like one."""

    ISSUED = "issued"
    REDEEMED = "redeemed"
    """Brought back as a token."""
    RECOGNISED = "recognised"
    """The call came back without its token."""
    LAPSED = "lapsed"
    """Not brought back before it expired, or before newer ones took its place in memory."""
    EXPIRED = "expired"
    """A token that came too late."""
    REUSED = "reused"
    INVALID = "invalid"
    """A token that is forged, or another tenant's, class's or call's."""
    OVERFLOWED = "overflowed"
    """Ignored, because so many were used that this use could not be remembered."""


Used = Callable[[bytes, float], None]
"""Is told the number of a ticket that counts now, and when it would have expired."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose call it is, and which.

    Attributes:
        tenant: its tenant.
        service_class: the name of its class.
        rank: that of its class.
        session: conversation or user, as the client names it; "" where it does not.
        fingerprint: of the body, see `fingerprint`.
    """

    tenant: str
    service_class: str
    rank: int
    session: str
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class _Open:
    """A ticket that may come back."""

    place: bytes
    rank: int
    arrived: float
    expires: float


def fingerprint(body: bytes) -> bytes:
    """Return what tells one body from another."""
    return hashlib.sha256(body).digest()[:16]


class Tickets:
    """The tickets of one pool. Times are Unix time in seconds.

    Args:
        key: secret; whoever has it can make tickets.
        window: seconds for which a ticket is good.
        capacity: see `CAPACITY`.
    """

    def __init__(self, key: bytes, *, window: float, capacity: int = CAPACITY) -> None:
        self.events: Counter[TicketEvent] = Counter()
        self._key = key
        self._window = window
        self._capacity = capacity
        self._open: OrderedDict[bytes, _Open] = OrderedDict()
        self._by_place: dict[bytes, OrderedDict[bytes, None]] = {}
        self._used: OrderedDict[bytes, float] = OrderedDict()
        self._open_by_rank: Counter[int] = Counter()
        self._returning = 1.0

    def __repr__(self) -> str:
        return f"<Tickets {len(self._open)} open, {len(self._used)} used>"

    def __len__(self) -> int:
        return len(self._open)

    def issue(self, subject: Subject, *, ident: str, arrived: float, now: float) -> str:
        """Return a token for a call that is shed.

        Args:
            subject: whose call it is, and which.
            ident: the exchange's id: makes the ticket one of its own.
            arrived: when the call first came.
            now: the ticket is good for the window from here.
        """
        self._forget(now)
        number = hashlib.sha256(ident.encode()).digest()[:_NUMBER]
        expires = now + self._window
        fields = _FIELDS.pack(_VERSION, _milliseconds(arrived), _milliseconds(expires), number)
        token = base64.urlsafe_b64encode(fields + self._sign(fields, subject))
        if len(self._open) >= self._capacity:
            self._lapse(next(iter(self._open)))
        place = _place(subject)
        self._open[number] = _Open(place, subject.rank, arrived, expires)
        self._by_place.setdefault(place, OrderedDict())[number] = None
        self._open_by_rank[subject.rank] += 1
        self.events[TicketEvent.ISSUED] += 1
        return token.decode()

    def redeem(
        self, subject: Subject, token: str, now: float, used: Used | None = None
    ) -> float | None:
        """Return when a call first came, if there is a ticket for it, and use that ticket up.

        Args:
            subject: whose call it is, and which.
            token: as the client sent it, or "".
            now: the moment.
            used: hears which ticket it was.
        """
        self._forget(now)
        arrived = self._by_token(subject, token, now, used) if token else None
        if arrived is None:
            arrived = self._by_memory(subject, now, used)
        return arrived

    def expected(self, rank: int) -> float:
        """Return how many tickets of classes down to ``rank`` are likely to come back.

        All that are open, times the share that came back lately.
        """
        return self._returning * sum(n for r, n in self._open_by_rank.items() if r <= rank)

    def _by_token(
        self, subject: Subject, token: str, now: float, used: Used | None
    ) -> float | None:
        fields, signature = _split(token)
        if not hmac.compare_digest(signature, self._sign(fields, subject)):
            self.events[TicketEvent.INVALID] += 1
            return None
        _, arrived, expires, number = _FIELDS.unpack(fields)
        if expires <= _milliseconds(now):
            self.events[TicketEvent.EXPIRED] += 1
            return None
        if number in self._used:
            self.events[TicketEvent.REUSED] += 1
            return None
        if not self._use(number, expires / 1000, TicketEvent.REDEEMED, used):
            return None
        return float(arrived / 1000)

    def _by_memory(self, subject: Subject, now: float, used: Used | None) -> float | None:
        for number in self._by_place.get(_place(subject), ()):
            known = self._open[number]
            if known.expires > now:
                good = self._use(number, known.expires, TicketEvent.RECOGNISED, used)
                return known.arrived if good else None
        return None

    def _use(self, number: bytes, expires: float, event: TicketEvent, used: Used | None) -> bool:
        """Remember that a ticket was used; say whether that was possible."""
        if len(self._used) >= self._capacity:
            self.events[TicketEvent.OVERFLOWED] += 1
            return False
        self._used[number] = expires
        self._close(number)
        self._returning += RETURN_STEP * (1 - self._returning)
        self.events[event] += 1
        if used is not None:
            used(number, expires)
        return True

    def _forget(self, now: float) -> None:
        """Forget what has expired; both are in the order of their expiry, but for clock steps."""
        while self._open and next(iter(self._open.values())).expires <= now:
            self._lapse(next(iter(self._open)))
        while self._used and next(iter(self._used.values())) <= now:
            self._used.popitem(last=False)

    def _lapse(self, number: bytes) -> None:
        self._close(number)
        self._returning -= RETURN_STEP * self._returning
        self.events[TicketEvent.LAPSED] += 1

    def _close(self, number: bytes) -> None:
        known = self._open.pop(number, None)
        if known is None:  # issued by another process, or no longer remembered
            return
        self._open_by_rank[known.rank] -= 1
        numbers = self._by_place[known.place]
        del numbers[number]
        if not numbers:
            del self._by_place[known.place]

    def _sign(self, fields: bytes, subject: Subject) -> bytes:
        text = _join(fields, subject.tenant, subject.service_class, subject.fingerprint)
        return hmac.digest(self._key, text, "sha256")[:_SIGNATURE]


def _place(subject: Subject) -> bytes:
    """Return what a call without a token is known by."""
    text = _join(subject.tenant, subject.service_class, subject.session, subject.fingerprint)
    return hashlib.sha256(text).digest()[:16]


def _join(*parts: str | bytes) -> bytes:
    """Return the parts as one, so that no other parts come to the same."""
    raw = (part if isinstance(part, bytes) else part.encode("utf-8", "replace") for part in parts)
    return b"".join(len(part).to_bytes(4, "big") + part for part in raw)


def _split(token: str) -> tuple[bytes, bytes]:
    """Return fields and signature of a token; where it is none, what no signature matches."""
    try:
        # Nothing longer is decoded, whatever a client sends.
        raw = base64.b64decode(token[: _TOKEN_LENGTH + 1], b"-_", validate=True)
    except ValueError:
        raw = b""
    if len(raw) != _LENGTH or raw[0] != _VERSION:
        return b"", b""
    return raw[: _FIELDS.size], raw[_FIELDS.size :]


def _milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))
