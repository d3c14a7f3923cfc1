"""A complete standalone Envoy."""

from __future__ import annotations

from envoy_data_plane.envoy.config.bootstrap.v3 import Admin, Bootstrap, BootstrapStaticResources
from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.core.v3 import Node
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter

from extproc import contract
from extproc.config import Config
from extproc.envoyconf import addresses
from extproc.envoyconf.clusters import clusters
from extproc.envoyconf.errors import NoPoolError
from extproc.envoyconf.filters import http_filters
from extproc.envoyconf.listener import listener
from extproc.envoyconf.render import fields, render
from extproc.envoyconf.runtime import runtime
from extproc.envoyconf.valve import with_valve

_NOTES = "A complete Envoy: `envoy -c bootstrap.yaml`."


def bootstrap(config: Config) -> str:
    """Return the YAML of a bootstrap that needs no other file but the EDS of pools by file.

    Raises:
        NoPoolError: the configuration has no pool.
    """
    message = skeleton(config, with_valve(config, http_filters(config)), clusters(config))
    return render("bootstrap", _NOTES, fields(message))


def skeleton(
    config: Config, filters: list[HttpFilter], static_clusters: list[Cluster]
) -> Bootstrap:
    """Return a bootstrap with these HTTP filters and clusters; without any, they come by CDS.

    Raises:
        NoPoolError: the configuration has no pool.
    """
    if not config.pools:
        raise NoPoolError
    admin = config.envoy.admin
    return Bootstrap(
        # The access log service and xDS ask who this is.
        node=Node(id=contract.FILTER_NAME, cluster=contract.FILTER_NAME),
        admin=None if admin is None else Admin(address=addresses.listening(admin)),
        layered_runtime=runtime(config),
        static_resources=BootstrapStaticResources(
            listeners=[listener(config, filters, check_clusters=bool(static_clusters))],
            clusters=static_clusters,
        ),
    )
