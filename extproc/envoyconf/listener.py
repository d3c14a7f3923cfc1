"""The standalone listener: connection manager, routes and access log.

Rules this module keeps:

* A stream ends when its engine or its client ends it, or when it has been silent for long; no
  timer cuts a long answer.
* No header of a client steers Envoy or Tidegate.
* Each admitted exchange is told to the processor when it ends; nothing else is.
"""

from __future__ import annotations

from datetime import timedelta

from envoy_data_plane.envoy.config.accesslog.v3 import AccessLog, AccessLogFilter, MetadataFilter
from envoy_data_plane.envoy.config.common.mutation_rules.v3 import (
    HeaderMutation,
    HeaderMutationRemoveOnMatch,
)
from envoy_data_plane.envoy.config.core.v3 import (
    HttpProtocolOptions,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.config.listener.v3 import Filter, FilterChain, Listener
from envoy_data_plane.envoy.config.route.v3 import (
    RetryPolicy,
    RetryPolicyRetryHostPredicate,
    Route,
    RouteAction,
    RouteConfiguration,
    RouteMatch,
    VirtualHost,
)
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpConnectionManagerPathWithEscapedSlashesAction,
    HttpFilter,
)
from envoy_data_plane.envoy.extensions.http.early_header_mutation.header_mutation.v3 import (
    HeaderMutation as EarlyHeaderMutation,
)
from envoy_data_plane.envoy.extensions.retry.host.previous_hosts.v3 import PreviousHostsPredicate
from envoy_data_plane.envoy.type.matcher.v3 import (
    MetadataMatcher,
    MetadataMatcherPathSegment,
    RegexMatcher,
    StringMatcher,
    ValueMatcher,
)
from envoy_data_plane.google.protobuf import Any

from extproc import contract
from extproc.config import Config
from extproc.envoyconf import addresses
from extproc.envoyconf.filters import processor_log
from extproc.envoyconf.valve import valve_access_logs

_ENVOYS_PREFIX = "x-envoy-"


def listener(config: Config, http_filters: list[HttpFilter], *, check_clusters: bool) -> Listener:
    """Return the listener, for HTTP/1.1 and cleartext HTTP/2.

    ``check_clusters``: refuse to start where a route names a cluster that is not there yet.
    """
    manager = guarded_manager(config)
    manager.stat_prefix = contract.FILTER_NAME
    manager.use_remote_address = True
    manager.common_http_protocol_options = HttpProtocolOptions(idle_timeout=timedelta(hours=1))
    manager.route_config = routes(config)
    manager.route_config.validate_clusters = None if check_clusters else False
    manager.http_filters = http_filters
    manager.access_log = [access_log(config), *valve_access_logs(config)]
    name = "envoy.filters.network.http_connection_manager"
    return Listener(
        name=contract.FILTER_NAME,
        address=addresses.listening(config.envoy.listener),
        filter_chains=[FilterChain(filters=[Filter(name=name, typed_config=Any.pack(manager))])],
    )


def guarded_manager(config: Config) -> HttpConnectionManager:
    """Return what any connection manager in front of Tidegate should be set to."""
    return HttpConnectionManager(
        normalize_path=True,
        merge_slashes=True,
        path_with_escaped_slashes_action=HttpConnectionManagerPathWithEscapedSlashesAction.REJECT_REQUEST,
        request_headers_timeout=timedelta(seconds=10),
        request_timeout=upload_timeout(config),
        stream_idle_timeout=timedelta(seconds=config.envoy.stream_idle_timeout),
        early_header_mutation_extensions=[steering_headers()],
    )


def upload_timeout(config: Config) -> timedelta:
    """Return after how long Envoy gives up on a request whose body does not end.

    Envoy counts until the engine has the request, so the wait for the verdict is in it.
    """
    return timedelta(seconds=config.envoy.upload_timeout + contract.longest_wait(config))


def routes(config: Config) -> RouteConfiguration:
    """Return one route for each pool, chosen by the metadata ``pool`` that the processor sets.

    Without it (a call without a body, a dead processor) the pool ``*`` serves, else the first pool.
    """
    *others, rest = _rest_last(tuple(config.pools))
    chosen = [
        _route(config, pool, RouteMatch(prefix="/", dynamic_metadata=[_metadata_is("pool", pool)]))
        for pool in others
    ]
    return RouteConfiguration(
        name=contract.FILTER_NAME,
        virtual_hosts=[
            VirtualHost(
                name=contract.FILTER_NAME,
                domains=["*"],
                request_body_buffer_limit=config.requests.max_body,
                request_headers_to_remove=_removed(config),
                routes=[*chosen, _route(config, rest, RouteMatch(prefix="/"))],
            )
        ],
    )


def _removed(config: Config) -> list[str]:
    valves = (contract.VALVE_CLASS_HEADER, contract.VALVE_MARK_HEADER)
    return [contract.TICKET_HEADER, *(() if config.envoy.valve is None else valves)]


def access_log(config: Config) -> AccessLog:
    """Return the log that tells the processor how each admitted exchange ended."""
    admitted = MetadataFilter(
        matcher=_metadata_is("verdict", "admit"), match_if_key_not_found=False
    )
    return processor_log(
        config,
        contract.FILTER_NAME,
        AccessLogFilter(metadata_filter=admitted),
        interval=contract.LOG_INTERVAL,
    )


def _rest_last(pools: tuple[str, ...]) -> tuple[str, ...]:
    rest = "*" if "*" in pools else pools[0]
    return (*(pool for pool in pools if pool != rest), rest)


def _metadata_is(key: str, value: str) -> MetadataMatcher:
    return MetadataMatcher(
        filter=contract.NAMESPACE,
        path=[MetadataMatcherPathSegment(key=key)],
        value=ValueMatcher(string_match=StringMatcher(exact=value)),
    )


def _route(config: Config, pool: str, match: RouteMatch) -> Route:
    return Route(
        name=pool,
        match=match,
        route=RouteAction(
            cluster=contract.pool_cluster(pool),
            timeout=timedelta(0),
            idle_timeout=timedelta(seconds=config.envoy.stream_idle_timeout),
            retry_policy=RetryPolicy(
                retry_on="connect-failure,refused-stream",
                num_retries=3,
                retry_host_predicate=[
                    RetryPolicyRetryHostPredicate(
                        name="envoy.retry_host_predicates.previous_hosts",
                        typed_config=Any.pack(PreviousHostsPredicate()),
                    )
                ],
                host_selection_retry_max_attempts=32,
            ),
        ),
    )


def _ours_but_tickets() -> StringMatcher:
    """Match all headers under our prefix but the ticket, which is signed and steers nothing.

    Envoy's regular expressions cannot say "not", so every way to differ from the name is listed.
    """
    prefix, name = contract.OWN_HEADERS_PREFIX, contract.TICKET_HEADER
    rest = name.removeprefix(prefix)
    others = "".join(f"{rest[:at]}([^{rest[at]}].*)?|" for at in range(len(rest)))
    return StringMatcher(safe_regex=RegexMatcher(regex=f"{prefix}({others}{rest}.+)"))


def steering_headers() -> TypedExtensionConfig:
    """Return the extension that takes away headers by which a client could steer."""
    return TypedExtensionConfig(
        name="envoy.http.early_header_mutation.header_mutation",
        typed_config=Any.pack(
            EarlyHeaderMutation(
                mutations=[
                    HeaderMutation(remove_on_match=HeaderMutationRemoveOnMatch(key_matcher=names))
                    for names in (_ours_but_tickets(), StringMatcher(prefix=_ENVOYS_PREFIX))
                ]
            )
        ),
    )
