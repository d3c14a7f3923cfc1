"""Free ports on loopback, for what is about to be started.

Rules this module keeps:

* Ports that are chosen together differ.
* They lie under the range from which systems serve connections that go out and who asks for any port
  (32768 and up on Linux): a port from there may be gone before who it was chosen for listens.
"""

from __future__ import annotations

import itertools
import random
import socket

_CHOICE = range(20_000, 32_768)


def free_ports(count: int) -> list[int]:
    """Return so many different ports that nobody listens on now."""
    order = random.SystemRandom().sample(_CHOICE, len(_CHOICE))
    return list(itertools.islice(filter(is_free, order), count))


def free_port() -> int:
    """Return a port that nobody listens on now."""
    return free_ports(1)[0]


def probe(port: int) -> None:
    """Listen for a moment, to see that it can be done.

    Raises:
        OSError: the port is taken.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))


def is_free(port: int) -> bool:
    """Say whether nobody listens on a port."""
    try:
        probe(port)
    except OSError:
        return False
    return True
