"""Where Redis or Valkey is, as users write it."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote, urlsplit


class RedisAddress(NamedTuple):
    """Where a server is, and as whom to go there; ``path`` is that of a Unix socket, or ""."""

    host: str
    port: int
    path: str
    tls: bool
    user: str
    password: str
    database: int


def parse_redis_url(url: str) -> RedisAddress:
    """Read ``redis://[[user]:password@]host[:port][/database]``, ``rediss://…`` or ``unix:///path``.

    Raises:
        ValueError: it is none of these.
    """
    parts = urlsplit(url)
    local = parts.scheme == "unix"
    place = parts.path if local else parts.hostname
    database = "" if local else parts.path.strip("/")
    if parts.scheme not in ("redis", "rediss", "unix") or not place:
        raise ValueError("write redis://host:6379, rediss://host:6379 or unix:///absolute/path")
    if parts.query or parts.fragment or (database and not database.isdecimal()):
        raise ValueError("nothing but the number of a database may follow the host")
    return RedisAddress(
        host=parts.hostname or "",
        port=parts.port or 6379,
        path=parts.path if local else "",
        tls=parts.scheme == "rediss",
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=int(database or 0),
    )
