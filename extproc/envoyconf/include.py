"""The files that an Envoy of one's own includes by path: filter, clusters, endpoints."""

from __future__ import annotations

from collections.abc import Iterable

import betterproto2
from envoy_data_plane.envoy.config.bootstrap.v3 import BootstrapDynamicResources
from envoy_data_plane.envoy.config.core.v3 import (
    ApiVersion,
    ConfigSource,
    ExtensionConfigSource,
    PathConfigSource,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.envoy.service.discovery.v3 import DiscoveryResponse
from envoy_data_plane.google.protobuf import Any

from extproc import contract
from extproc.config import Config
from extproc.envoyconf.bootstrap import skeleton
from extproc.envoyconf.clusters import clusters, eds_assignment
from extproc.envoyconf.filters import ext_proc, http_filters
from extproc.envoyconf.render import fields, render
from extproc.envoyconf.valve import valve_layer, with_valve

ECDS_FILE = "ecds.yaml"
CDS_FILE = "cds.yaml"

_EXAMPLE = """\
An example of an Envoy of your own that includes Tidegate by path. Take over into yours:
  - dynamic_resources.cds_config: the clusters of Tidegate and of the engines (cds.yaml);
  - layered_runtime: what it says of ext_proc;
  - the HTTP filters from tidegate.load_report to sse_to_metadata, in this order;
  - access_log, early_header_mutation_extensions, the timeouts, normalize_path,
    request_body_buffer_limit and the routes.
Envoy watches the included files: put a new one in place by renaming it over the old one."""
_ECDS = """\
The external processor, for `config_discovery` by `path_config_source`: include.yaml shows how,
and which filters must follow it."""
_CDS = "The clusters of Tidegate and of the engines, for `dynamic_resources.cds_config` by path."
_EDS = "The endpoints of a pool that is kept in a file. Generate it again when that file changes."


def ecds(config: Config) -> str:
    """Return the ECDS file: the external processor's filter."""
    extension = TypedExtensionConfig(
        name=contract.FILTER_NAME, typed_config=Any.pack(ext_proc(config))
    )
    return _response("ecds", _ECDS, [extension])


def cds(config: Config) -> str:
    """Return the CDS file: the clusters of the processor and of the engines."""
    return _response("cds", _CDS, clusters(config))


def eds(pool: str, endpoints: Iterable[str]) -> str:
    """Return the EDS file of a pool with `endpoints: {file: …}`: what that file lists."""
    return _response("eds", _EDS, [eds_assignment(pool, endpoints)])


def example(config: Config) -> str:
    """Return a bootstrap that includes the ECDS and the CDS file by path.

    Raises:
        NoPoolError: the configuration has no pool.
    """
    directory = config.envoy.include_dir
    included = HttpFilter(
        name=contract.FILTER_NAME,
        config_discovery=ExtensionConfigSource(
            config_source=_by_path(str(directory / ECDS_FILE)),
            type_urls=[Any.pack(ext_proc(config)).type_url],
        ),
    )
    filters = [
        included if each.name == contract.FILTER_NAME else each for each in http_filters(config)
    ]
    message = skeleton(config, with_valve(config, filters), [])
    if valve_layer(config) is not None and message.static_resources is not None:
        # Whom the runtime layer is asked for must be known from the start; CDS then leaves it alone.
        message.static_resources.clusters = clusters(config)[:1]
    message.dynamic_resources = BootstrapDynamicResources(
        cds_config=_by_path(str(directory / CDS_FILE))
    )
    return render("include", _EXAMPLE, fields(message))


def _by_path(path: str) -> ConfigSource:
    return ConfigSource(
        path_config_source=PathConfigSource(path=path), resource_api_version=ApiVersion.V3
    )


def _response(form: str, notes: str, resources: Iterable[betterproto2.Message]) -> str:
    return render(form, notes, fields(DiscoveryResponse(resources=list(map(Any.pack, resources)))))
