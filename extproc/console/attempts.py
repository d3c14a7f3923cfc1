"""How often somebody may try to log in.

Rules this module keeps:

* Ten failures a minute from one address, five of them at once; from elsewhere people still get in.
* Whoever succeeds has not failed.
* However many addresses try, a thousand are remembered.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

_BURST = 5
_SECONDS_EACH = 6.0
_MOST = 1000


class Attempts:
    """Attempts by address; each address has one number, the time at which it will have all again.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._full_at: dict[str, float] = {}

    def take(self, address: str) -> float:
        """Take one attempt; return 0, or the seconds to wait where none is left."""
        now, key = self._clock(), _key(address)
        full_at = max(now, self._full_at.pop(key, now))
        wait = full_at + _SECONDS_EACH - (now + _BURST * _SECONDS_EACH)
        if wait <= 0:
            full_at += _SECONDS_EACH
        self._full_at[key] = full_at
        if len(self._full_at) > _MOST:
            del self._full_at[next(iter(self._full_at))]
        return max(0.0, wait)

    def give_back(self, address: str) -> None:
        """Forget the last attempt: it was no failure of theirs."""
        key = _key(address)
        if key in self._full_at:
            self._full_at[key] -= _SECONDS_EACH


def _key(address: str) -> str:
    """Return what counts as one place: of IPv6 a /64, because a host has one to itself."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return address
