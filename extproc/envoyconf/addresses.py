"""Addresses as the configuration writes them, turned into Envoy's messages."""

from __future__ import annotations

import ipaddress

from envoy_data_plane.envoy.config.core.v3 import Address, Pipe, SocketAddress

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "[::]": "::1", "::": "::1"}  # noqa: S104 - compared, not bound


def split(address: str) -> tuple[str, int]:
    """Split ``host:port``; brackets around an IPv6 host are taken off."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def listening(address: str) -> Address:
    """Return where to bind: ``host:port`` or ``unix:///path``."""
    if address.startswith("unix://"):
        return Address(pipe=Pipe(path=address.removeprefix("unix://")))
    host, port = split(address)
    return Address(socket_address=SocketAddress(address=host, port_value=port))


def reaching(address: str) -> Address:
    """Return where to connect to; a wildcard that a server listens on becomes loopback."""
    if address.startswith("unix://"):
        return listening(address)
    host, port = split(_unwildcard(address))
    return Address(socket_address=SocketAddress(address=host, port_value=port))


def is_name(address: str) -> bool:
    """Say whether ``host:port`` has a host that DNS must resolve."""
    if address.startswith("unix://"):
        return False
    try:
        ipaddress.ip_address(split(address)[0])
    except ValueError:
        return True
    return False


def _unwildcard(address: str) -> str:
    host, colon, port = address.rpartition(":")
    return f"{_WILDCARDS.get(host, host)}{colon}{port}"
