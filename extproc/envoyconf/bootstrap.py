"""A complete standalone Envoy."""

from __future__ import annotations

from envoy_data_plane.envoy.config.bootstrap.v3 import Admin, Bootstrap, BootstrapStaticResources
from envoy_data_plane.envoy.config.core.v3 import Node

from extproc import contract
from extproc.config import Config
from extproc.envoyconf import addresses
from extproc.envoyconf.clusters import clusters
from extproc.envoyconf.filters import http_filters
from extproc.envoyconf.listener import listener
from extproc.envoyconf.render import render


class NoPoolError(ValueError):
    """The configuration has no pool, so Envoy would have nowhere to send a request."""

    def __init__(self) -> None:
        super().__init__("pools: Envoy needs at least one pool to send requests to")


def bootstrap(
    config: Config,
    *,
    listener_address: str | None = None,
    admin_address: str | None = None,
    processor_address: str | None = None,
) -> str:
    """Return the YAML of a bootstrap that needs no other file but the EDS of pools by file.

    The addresses (``host:port``, port 0 for any free one, or ``unix:///path``) override those of
    the configuration.

    Raises:
        NoPoolError: the configuration has no pool.
    """
    if not config.pools:
        raise NoPoolError
    overrides = {
        "listener": listener_address,
        "admin": admin_address,
        "processor": processor_address,
    }
    given = {key: value for key, value in overrides.items() if value is not None}
    config = config.model_copy(update={"envoy": config.envoy.model_copy(update=given)})
    return render(
        Bootstrap(
            node=node(),
            admin=admin(config),
            static_resources=BootstrapStaticResources(
                listeners=[listener(config, http_filters(config))], clusters=clusters(config)
            ),
        ),
        "bootstrap",
    )


def node() -> Node:
    """Return who this Envoy is; the access log service and xDS ask for it."""
    return Node(id=contract.FILTER_NAME, cluster=contract.FILTER_NAME)


def admin(config: Config) -> Admin | None:
    """Return the admin endpoint, or None where the configuration wants none."""
    address = config.envoy.admin
    return None if address is None else Admin(address=addresses.listening(address))
