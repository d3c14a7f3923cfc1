"""The clusters: the processor, and one for each pool of engines.

Rules this module keeps:

* Tidegate decides what is admitted, so no circuit breaker of Envoy may decide before it.
* What does not answer its health check gets nothing, even when nothing else is left: a hung
  processor is then passed over at once, and a pool without endpoints is answered at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import PurePath
from urllib.parse import quote

import betterproto2
from envoy_data_plane.envoy.config.cluster.v3 import (
    CircuitBreakers,
    CircuitBreakersThresholds,
    Cluster,
    ClusterCommonLbConfig,
    ClusterDiscoveryType,
    ClusterEdsClusterConfig,
    ClusterLbPolicy,
    LoadBalancingPolicy,
    LoadBalancingPolicyPolicy,
)
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    ApiVersion,
    ConfigSource,
    HealthCheck,
    HealthCheckGrpcHealthCheck,
    HealthCheckHttpHealthCheck,
    Http1ProtocolOptions,
    Http2ProtocolOptions,
    HttpProtocolOptions,
    PathConfigSource,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.config.endpoint.v3 import (
    ClusterLoadAssignment,
    Endpoint,
    LbEndpoint,
    LocalityLbEndpoints,
)
from envoy_data_plane.envoy.extensions.load_balancing_policies.least_request.v3 import LeastRequest
from envoy_data_plane.envoy.extensions.load_balancing_policies.override_host.v3 import (
    OverrideHost,
    OverrideHostOverrideHostSource,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptions as UpstreamProtocolOptions,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import (
    HttpProtocolOptionsExplicitHttpConfig as ExplicitHttpConfig,
)
from envoy_data_plane.envoy.type.metadata.v3 import MetadataKey, MetadataKeyPathSegment
from envoy_data_plane.envoy.type.v3 import Percent
from envoy_data_plane.google.protobuf import Any

from extproc import contract
from extproc.config import Config, PoolConfig, processor_addresses
from extproc.envoyconf import addresses

UNLIMITED = 1_000_000
"""A limit that no circuit breaker reaches."""
_PROTOCOL_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_ENGINE_IDLE = timedelta(seconds=4)
"""Under the 5 s after which vLLM's server closes an idle connection."""


def clusters(config: Config) -> list[Cluster]:
    """Return all clusters."""
    return [
        processor_cluster(config.envoy.processor or config.listen.processor, config.listen.workers),
        *(
            pool_cluster(name, pool, config.envoy.include_dir)
            for name, pool in config.pools.items()
        ),
    ]


def processor_cluster(address: str, workers: int) -> Cluster:
    """Return the cluster of the processor's workers; ``address`` is the first one's."""
    name = contract.PROCESSOR_CLUSTER
    reached = processor_addresses(address, workers)
    return Cluster(
        name=name,
        type=_discovery(reached),
        connect_timeout=timedelta(milliseconds=250),
        load_assignment=_assignment(name, map(addresses.reaching, reached)),
        typed_extension_protocol_options=_protocol(
            UpstreamProtocolOptions(
                explicit_http_config=ExplicitHttpConfig(
                    http2_protocol_options=Http2ProtocolOptions()
                )
            )
        ),
        circuit_breakers=_unlimited(),
        health_checks=[
            HealthCheck(
                timeout=timedelta(seconds=1),
                interval=timedelta(seconds=1),
                no_traffic_interval=timedelta(seconds=1),
                unhealthy_interval=timedelta(milliseconds=200),
                unhealthy_threshold=3,
                healthy_threshold=1,
                grpc_health_check=HealthCheckGrpcHealthCheck(),
            )
        ],
        common_lb_config=_never_panic(),
    )


def pool_cluster(name: str, pool: PoolConfig, directory: PurePath) -> Cluster:
    """Return the cluster of a pool's vLLM endpoints; ``directory`` holds its EDS file, if any."""
    cluster = Cluster(
        name=contract.pool_cluster(name),
        connect_timeout=timedelta(seconds=1),
        typed_extension_protocol_options=_protocol(
            UpstreamProtocolOptions(
                common_http_protocol_options=HttpProtocolOptions(idle_timeout=_ENGINE_IDLE),
                explicit_http_config=ExplicitHttpConfig(
                    http_protocol_options=Http1ProtocolOptions()
                ),
            )
        ),
        circuit_breakers=_unlimited(),
        health_checks=[
            HealthCheck(
                timeout=timedelta(seconds=5),
                interval=timedelta(seconds=5),
                no_traffic_interval=timedelta(seconds=5),
                unhealthy_interval=timedelta(seconds=1),
                unhealthy_threshold=2,
                healthy_threshold=1,
                http_health_check=HealthCheckHttpHealthCheck(path="/health"),
            )
        ],
        common_lb_config=_never_panic(),
    )
    _set_endpoints(cluster, name, pool, directory)
    if pool.balance == "pick":
        cluster.load_balancing_policy = _picked_endpoint()
    else:
        cluster.lb_policy = ClusterLbPolicy.LEAST_REQUEST
    return cluster


def eds_assignment(name: str, endpoints: Iterable[str]) -> ClusterLoadAssignment:
    """Return what the EDS file of a pool with `endpoints: {file: …}` says."""
    return _assignment(contract.pool_cluster(name), map(addresses.reaching, endpoints))


def eds_file(pool: str) -> str:
    """Return the name of the EDS file of a pool; a model's name may hold slashes."""
    return f"eds-{quote(pool, safe='')}.yaml"


def _set_endpoints(cluster: Cluster, name: str, pool: PoolConfig, directory: PurePath) -> None:
    endpoints = pool.endpoints
    if endpoints.file is not None:
        cluster.type = ClusterDiscoveryType.EDS
        cluster.eds_cluster_config = ClusterEdsClusterConfig(
            eds_config=ConfigSource(
                path_config_source=PathConfigSource(path=str(directory / eds_file(name))),
                resource_api_version=ApiVersion.V3,
            )
        )
        return
    listed = endpoints.static or (f"{endpoints.dns}:{endpoints.port}",)
    cluster.type = _discovery(listed)
    cluster.load_assignment = _assignment(cluster.name, map(addresses.reaching, listed))


def _discovery(listed: Iterable[str]) -> ClusterDiscoveryType:
    named = any(map(addresses.is_name, listed))
    return ClusterDiscoveryType.STRICT_DNS if named else ClusterDiscoveryType.STATIC


def _assignment(name: str, reached: Iterable[Address]) -> ClusterLoadAssignment:
    return ClusterLoadAssignment(
        cluster_name=name,
        endpoints=[
            LocalityLbEndpoints(
                lb_endpoints=[LbEndpoint(endpoint=Endpoint(address=address)) for address in reached]
            )
        ],
    )


def _picked_endpoint() -> LoadBalancingPolicy:
    key = MetadataKey(
        key=contract.ENDPOINT_NAMESPACE,
        path=[MetadataKeyPathSegment(key=contract.ENDPOINT_KEY)],
    )
    return _policy(
        "envoy.load_balancing_policies.override_host",
        OverrideHost(
            override_host_sources=[OverrideHostOverrideHostSource(metadata=key)],
            fallback_policy=_policy("envoy.load_balancing_policies.least_request", LeastRequest()),
        ),
    )


def _policy(name: str, message: betterproto2.Message) -> LoadBalancingPolicy:
    extension = TypedExtensionConfig(name=name, typed_config=Any.pack(message))
    return LoadBalancingPolicy(policies=[LoadBalancingPolicyPolicy(extension)])


def _protocol(options: UpstreamProtocolOptions) -> dict[str, Any]:
    return {_PROTOCOL_OPTIONS: Any.pack(options)}


def _unlimited() -> CircuitBreakers:
    return CircuitBreakers(
        thresholds=[
            CircuitBreakersThresholds(
                max_connections=UNLIMITED,
                max_pending_requests=UNLIMITED,
                max_requests=UNLIMITED,
                max_retries=UNLIMITED,
            )
        ]
    )


def _never_panic() -> ClusterCommonLbConfig:
    return ClusterCommonLbConfig(healthy_panic_threshold=Percent(value=0.0))
