"""The worker's side: what its parent tells it, and hearing that the parent is gone.

Rules this module keeps:

* The secret comes through a pipe, not by a command line or an environment that others can read.
* The pipe stays open for as long as the parent lives. When it closes, the worker stops as if told to.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys

SECRET_BYTES = 32


def read_secret() -> bytes:
    """Return what all workers sign tickets with."""
    return os.read(sys.stdin.fileno(), SECRET_BYTES)


def pages_socket(descriptor: int) -> socket.socket:
    """Return the socket, listening, on which the parent asks for pages."""
    return socket.socket(fileno=descriptor)


def stop_with_parent(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Stop when the parent has gone."""
    pipe = sys.stdin.fileno()

    def closed() -> None:
        loop.remove_reader(pipe)
        stop.set()

    loop.add_reader(pipe, closed)
