"""Where a pool's endpoints are: written down, in DNS, or in a file.

Rules this module keeps:

* A source answers with all endpoints of this moment, or says in `DiscoveryError` why it cannot.
* No answer is ever empty: a name that resolves to nothing and a list with nothing in it are
  problems. Who asks keeps what was known before.
* Reading a source never blocks the event loop.
"""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Protocol

from extproc.config import Endpoints, EndpointsError, parse_endpoints

DNS_PERIOD = 5.0
"""Seconds between two lookups of a name."""
FILE_PERIOD = 1.0
"""Seconds between two looks at a file."""
MAX_FILE = 1 << 20
"""Bytes; a longer file is refused."""

Resolve = Callable[[str, int], Awaitable[Iterable[str]]]
"""Gives the IP addresses of a host, for TCP to a port; raises OSError where it cannot."""


class DiscoveryError(Exception):
    """The endpoints cannot be told; the text says why, in one line."""


class Source(Protocol):
    """Knows the endpoints of a pool."""

    @property
    def period(self) -> float | None:
        """Seconds from one reading to the next; None where nothing can change."""
        ...

    async def read(self) -> frozenset[str]:
        """Return the endpoints of now, as ``host:port``; at least one.

        Raises:
            DiscoveryError: the source cannot be read, is empty, or says something wrong.
        """
        ...


async def resolve(host: str, port: int) -> list[str]:
    """Ask the system's resolver; see `Resolve`."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def source(endpoints: Endpoints, resolve: Resolve = resolve) -> Source:
    """Return the source that the configuration names."""
    if endpoints.file is not None:
        return File(endpoints.file)
    if endpoints.dns is not None and endpoints.port is not None:
        return Dns(endpoints.dns, endpoints.port, resolve)
    return Static(endpoints.static or ())


class Static:
    """A list in the configuration."""

    period = None

    def __init__(self, endpoints: Iterable[str]) -> None:
        self._endpoints = frozenset(endpoints)

    async def read(self) -> frozenset[str]:
        """See `Source`."""
        return self._endpoints


class Dns:
    """A name with an address for each endpoint, such as a headless Kubernetes service."""

    period = DNS_PERIOD

    def __init__(self, host: str, port: int, resolve: Resolve) -> None:
        self._host = host
        self._port = port
        self._resolve = resolve

    async def read(self) -> frozenset[str]:
        """See `Source`."""
        try:
            addresses = await self._resolve(self._host, self._port)
        except (OSError, UnicodeError) as error:  # UnicodeError: no host can be called that
            raise DiscoveryError(f"{self._host} cannot be resolved: {error}") from error
        found = frozenset(
            f"[{address}]:{self._port}" if ":" in address else f"{address}:{self._port}"
            for address in addresses
        )
        if not found:
            raise DiscoveryError(f"{self._host} has no address")
        return found


class File:
    """A YAML or JSON file; see `extproc.config.parse_endpoints`.

    It is read again when its identity, size or time of change differ. Write a new file and rename
    it over the old one: half of a list that is written in place may be read as the whole.
    """

    period = FILE_PERIOD

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, ...] | None = None
        self._endpoints: frozenset[str] = frozenset()

    async def read(self) -> frozenset[str]:
        """See `Source`."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> frozenset[str]:
        try:
            status = self._path.stat()
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE:
                raise DiscoveryError(f"{self._path}: no plain file of up to {MAX_FILE >> 20} MiB")
            # Looked at before it is read: what changes in between is noticed the next time.
            stamp = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            if stamp != self._stamp:
                self._endpoints = frozenset(parse_endpoints(self._path.read_bytes()))
                self._stamp = stamp
        except OSError as error:
            raise DiscoveryError(f"{self._path}: {error.strerror}") from error
        except EndpointsError as error:
            raise DiscoveryError(f"{self._path}: {error}") from error
        return self._endpoints
