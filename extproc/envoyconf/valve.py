"""The flood valve: what Envoy refuses itself, without asking the processor.

Rules this module keeps:

* Off until told otherwise: every share is a runtime key whose default is 0, and Tidegate's runtime
  layer, which alone raises it, dies a few seconds after Tidegate.
* Calls of strict classes are named by nobody, so that no filter here can touch them.
* Who decides (`classify`), who draws lots (the marks) and who answers (`answer`) are apart: the first
  and the last are scripts, what is between is Envoy's own and live.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any as Told

import betterproto2
from envoy_data_plane.envoy.config.accesslog.v3 import (
    AccessLog,
    AccessLogFilter,
    AndFilter,
    MetadataFilter,
    RuntimeFilter,
)
from envoy_data_plane.envoy.config.bootstrap.v3 import (
    RuntimeLayer,
    RuntimeLayerRtdsLayer,
)
from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation as MutationRule
from envoy_data_plane.envoy.config.core.v3 import (
    ApiConfigSource,
    ApiConfigSourceApiType,
    ApiVersion,
    BackoffStrategy,
    ConfigSource,
    DataSource,
    GrpcService,
    GrpcServiceEnvoyGrpc,
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
    RetryPolicy,
    RuntimeFractionalPercent,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.extensions.access_loggers.stats.v3 import Config as StatsConfig
from envoy_data_plane.envoy.extensions.access_loggers.stats.v3 import (
    ConfigCounter,
    ConfigStat,
    ConfigTag,
)
from envoy_data_plane.envoy.extensions.filters.http.composite.v3 import (
    Composite,
    DynamicConfig,
    ExecuteFilterAction,
)
from envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 import (
    HeaderMutation,
    Mutations,
)
from envoy_data_plane.envoy.extensions.filters.http.local_ratelimit.v3 import LocalRateLimit
from envoy_data_plane.envoy.extensions.filters.http.lua.v3 import Lua
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.envoy.type.matcher.v3 import (
    HttpRequestHeaderMatchInput,
    MetadataMatcher,
    MetadataMatcherPathSegment,
    ValueMatcher,
)
from envoy_data_plane.envoy.type.v3 import (
    FractionalPercent,
    FractionalPercentDenominatorType,
    Scope,
    TokenBucket,
)
from envoy_data_plane.google.protobuf import Any
from envoy_data_plane.xds.core.v3 import TypedExtensionConfig as XdsExtensionConfig
from envoy_data_plane.xds.type.matcher.v3 import (
    Matcher,
    MatcherMatcherList,
    MatcherMatcherListFieldMatcher,
    MatcherMatcherListPredicate,
    MatcherMatcherListPredicateSinglePredicate,
    MatcherMatcherTree,
    MatcherMatcherTreeMatchMap,
    MatcherOnMatch,
)
from envoy_data_plane.xds.type.matcher.v3 import StringMatcher as XdsStringMatcher

from extproc import contract
from extproc.config import Config, load_keys, service_classes
from extproc.config.identity import Source
from extproc.config.valve import ValveConfig
from extproc.core.classes import LONGEST_TENANT, ServiceClass
from extproc.core.reasons import Reason
from extproc.envoyconf.filters import named, processor_log
from extproc.envoyconf.lua import script
from extproc.envoyconf.valve_replies import told

_ANY_POOL = 0
_STEPS = 20_000
"""Quotes and brackets of a body that are looked at; what has more is Tidegate's."""
_LONGEST_KEY = 4096
_FIRST_INTERVAL = timedelta(milliseconds=100)
_MILLION = FractionalPercentDenominatorType.MILLION


def valve_filters(config: Config) -> list[HttpFilter]:
    """Return the filters, to stand right before the external processor; none where there is no valve."""
    valve = config.envoy.valve
    lowered = [each for each in service_classes(config) if not each.strict]
    if valve is None or not lowered:
        return []
    marks = [
        _by_class(
            f"tidegate.valve.{reason.value}.{pool}",
            {
                each.name: _execute(
                    "envoy.filters.http.header_mutation",
                    HeaderMutation(
                        mutations=Mutations(
                            request_mutations=[MutationRule(append=_mark(number, reason))]
                        )
                    ),
                    contract.valve_key(each.name, reason, pool),
                )
                for each in lowered
            },
        )
        for number, pool in enumerate(config.pools, _ANY_POOL + 1)
        for reason in contract.VALVE_REASONS
    ]
    return [
        named("tidegate.valve.class", _lua(classify_script(config))),
        *([] if valve.first is None else [_first(valve.first, lowered[-1])]),
        *marks,
        _where(
            "tidegate.valve.answer",
            _marked(),
            _execute("envoy.filters.http.lua", _lua(answer_script(config))),
        ),
    ]


def with_valve(config: Config, filters: list[HttpFilter]) -> list[HttpFilter]:
    """Return the filters with those of the valve before the external processor.

    That one is made only when a call has come so far: else Envoy would show it the answers of the
    valve, as it shows every filter the answers of those before it.
    """
    valve = valve_filters(config)
    if not valve:
        return filters
    at = next(n for n, each in enumerate(filters) if each.name == contract.FILTER_NAME)
    return [*filters[:at], *valve, _made_late(filters[at]), *filters[at + 1 :]]


def _made_late(wrapped: HttpFilter) -> HttpFilter:
    if wrapped.config_discovery is not None:
        dynamic = DynamicConfig(name=wrapped.name, config_discovery=wrapped.config_discovery)
        action = ExecuteFilterAction(dynamic_config=dynamic)
    else:
        extension = TypedExtensionConfig(name=wrapped.name, typed_config=wrapped.typed_config)
        action = ExecuteFilterAction(typed_config=extension)
    unmarked = MatcherMatcherListPredicate(not_matcher=_marked())
    return _where(wrapped.name, unmarked, _on_match(action))


def valve_access_logs(config: Config) -> list[AccessLog]:
    """Return the logs of what the valve refuses: an exact counter in Envoy, and a sample for us."""
    if not valve_filters(config):
        return []
    tags = ("pool", "class", "reason")
    counter = ConfigCounter(
        stat=ConfigStat(
            name="refused",
            tags=[ConfigTag(name=each, value_format=_metadata_format(each)) for each in tags],
        ),
        value_fixed=1,
    )
    sampled = RuntimeFilter(
        runtime_key=contract.VALVE_SAMPLED,
        percent_sampled=FractionalPercent(denominator=_MILLION),
        use_independent_randomness=True,
    )
    return [
        AccessLog(
            name="envoy.access_loggers.stats",
            filter=_refused(),
            typed_config=Any.pack(
                StatsConfig(stats_scope=Scope(prefix=contract.VALVE_STATS), counters=[counter])
            ),
        ),
        processor_log(
            config,
            contract.VALVE_NAMESPACE,
            AccessLogFilter(
                and_filter=AndFilter(filters=[_refused(), AccessLogFilter(runtime_filter=sampled)])
            ),
        ),
    ]


def valve_layer(config: Config) -> RuntimeLayer | None:
    """Return the layer of Envoy's runtime that Tidegate serves; None where there is no valve.

    Envoy starts without it after half a second, and asks again soon where the processor is away.
    """
    if not valve_filters(config):
        return None
    service = GrpcService(
        envoy_grpc=GrpcServiceEnvoyGrpc(
            cluster_name=contract.PROCESSOR_CLUSTER,
            retry_policy=RetryPolicy(
                retry_back_off=BackoffStrategy(
                    base_interval=timedelta(milliseconds=100), max_interval=timedelta(seconds=1)
                )
            ),
        )
    )
    source = ConfigSource(
        api_config_source=ApiConfigSource(
            api_type=ApiConfigSourceApiType.GRPC,
            transport_api_version=ApiVersion.V3,
            grpc_services=[service],
        ),
        initial_fetch_timeout=timedelta(milliseconds=500),
        resource_api_version=ApiVersion.V3,
    )
    layer = RuntimeLayerRtdsLayer(name=contract.VALVE_LAYER, rtds_config=source)
    return RuntimeLayer(name=contract.VALVE_LAYER, rtds_layer=layer)


def classify_script(config: Config) -> str:
    """Return the script that names a call's class; raises ConfigError where a key file is of no use."""
    classes = {
        each.name: {"name": each.name, "rank": each.rank, "strict": each.strict}
        for each in service_classes(config)
    }
    default = config.identity.default_tenant
    tenants = {name: classes[each.class_] for name, each in config.tenants.items()}
    return script(
        "classify",
        SOURCES=[_source(config, each) for each in config.identity.sources],
        TENANTS=tenants,
        DEFAULT=tenants.get(default, classes[list(classes)[-1]]),
        DEFAULT_TENANT=default,
        LOWEST=classes[list(classes)[-1]],
        LONGEST=LONGEST_TENANT,
        LONGEST_KEY=_LONGEST_KEY,
        HEADER=contract.VALVE_CLASS_HEADER,
        NAMESPACE=contract.VALVE_NAMESPACE,
    )


def _source(config: Config, source: Source) -> dict[str, Told]:
    if source.metadata is not None:
        return {"kind": "metadata", "filter": source.metadata.filter, "path": source.metadata.path}
    if source.header is not None:
        return {"kind": "header", "name": source.header.name, "trusted": source.header.trusted}
    return {"kind": "key", "digests": load_keys(config)}


def answer_script(config: Config) -> str:
    """Return the script that answers a call that is marked."""
    valve = config.envoy.valve or ValveConfig()
    seconds = round(config.fallback.retry_after)
    messages = {
        "zh": valve.message.zh.format(seconds=seconds),
        "en": valve.message.en.format(seconds=seconds),
    }
    pools = {name: name for name in config.pools}
    aliases = {alias: name for name, pool in config.pools.items() for alias in pool.aliases}
    return script(
        "answer",
        **told(config, messages),
        POOLS={"names": list(config.pools), "models": {**pools, **aliases}},
        DEFAULT_POOL="*" if "*" in config.pools else next(iter(config.pools), None),
        MARK=contract.VALVE_MARK_HEADER,
        CLASS=contract.VALVE_CLASS_HEADER,
        TICKET=contract.TICKET_HEADER,
        NAMESPACE=contract.VALVE_NAMESPACE,
        STEPS=_STEPS,
    )


def _first(rate: float, lowest: ServiceClass) -> HttpFilter:
    """Return the stage that holds until Tidegate has said something: what is above a rate is marked."""
    each_time = max(1, round(rate * _FIRST_INTERVAL.total_seconds()))
    limit = LocalRateLimit(
        stat_prefix="tidegate_valve_first",
        token_bucket=TokenBucket(
            max_tokens=2 * each_time,
            tokens_per_fill=each_time,
            fill_interval=_FIRST_INTERVAL,
        ),
        filter_enabled=_share(contract.VALVE_FIRST),
        filter_enforced=RuntimeFractionalPercent(
            default_value=FractionalPercent(denominator=_MILLION)
        ),
        request_headers_to_add_when_not_enforced=[_mark(_ANY_POOL, Reason.FLOOD)],
    )
    action = _execute("envoy.filters.http.local_ratelimit", limit)
    return _by_class("tidegate.valve.first", {lowest.name: action})


def _mark(number: int, reason: Reason) -> HeaderValueOption:
    value = f"{number}:{reason.value}"
    return HeaderValueOption(
        header=HeaderValue(key=contract.VALVE_MARK_HEADER, value=value),
        append_action=HeaderValueOptionHeaderAppendAction.APPEND_IF_EXISTS_OR_ADD,
    )


def _by_class(name: str, actions: Mapping[str, MatcherOnMatch]) -> HttpFilter:
    tree = MatcherMatcherTree(
        input=_header(contract.VALVE_CLASS_HEADER),
        exact_match_map=MatcherMatcherTreeMatchMap(map=dict(actions)),
    )
    return named(name, Composite(matcher=Matcher(matcher_tree=tree)))


def _where(
    name: str, predicate: MatcherMatcherListPredicate, on_match: MatcherOnMatch
) -> HttpFilter:
    field = MatcherMatcherListFieldMatcher(predicate=predicate, on_match=on_match)
    matcher = Matcher(matcher_list=MatcherMatcherList(matchers=[field]))
    return named(name, Composite(matcher=matcher))


def _marked() -> MatcherMatcherListPredicate:
    return MatcherMatcherListPredicate(
        single_predicate=MatcherMatcherListPredicateSinglePredicate(
            input=_header(contract.VALVE_MARK_HEADER), value_match=XdsStringMatcher(contains=":")
        )
    )


def _header(name: str) -> XdsExtensionConfig:
    return XdsExtensionConfig(
        name="header", typed_config=Any.pack(HttpRequestHeaderMatchInput(header_name=name))
    )


def _execute(name: str, message: betterproto2.Message, key: str | None = None) -> MatcherOnMatch:
    """Return the action that lets a filter see a call; with a key, as often as that says."""
    action = ExecuteFilterAction(
        typed_config=TypedExtensionConfig(name=name, typed_config=Any.pack(message)),
        sample_percent=None if key is None else _share(key),
    )
    return _on_match(action)


def _on_match(action: ExecuteFilterAction) -> MatcherOnMatch:
    return MatcherOnMatch(
        action=XdsExtensionConfig(name="composite-action", typed_config=Any.pack(action))
    )


def _share(key: str) -> RuntimeFractionalPercent:
    return RuntimeFractionalPercent(
        default_value=FractionalPercent(denominator=_MILLION), runtime_key=key
    )


def _lua(text: str) -> Lua:
    return Lua(default_source_code=DataSource(inline_string=text))


def _metadata_format(key: str) -> str:
    return f"%DYNAMIC_METADATA({contract.VALVE_NAMESPACE}:{key})%"


def _refused() -> AccessLogFilter:
    matcher = MetadataMatcher(
        filter=contract.VALVE_NAMESPACE,
        path=[MetadataMatcherPathSegment(key="id")],
        value=ValueMatcher(present_match=True),
    )
    return AccessLogFilter(
        metadata_filter=MetadataFilter(matcher=matcher, match_if_key_not_found=False)
    )
