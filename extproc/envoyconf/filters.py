"""The HTTP filters: the external processor and the readers of token usage.

Rules this module keeps:

* Fewest messages win: request headers come as attributes along with the buffered body, so that an
  ordinary exchange costs two messages (request body, response headers).
* Ordinary responses never pass the processor; Envoy's own filters read the usage out of them.
* A mode override may stream the response of an exchange that may be cut; nothing else changes.
"""

from __future__ import annotations

from datetime import timedelta

import betterproto2
from envoy_data_plane.envoy.config.accesslog.v3 import AccessLog, AccessLogFilter
from envoy_data_plane.envoy.config.common.mutation_rules.v3 import (
    HeaderMutation as HeaderMutationRule,
)
from envoy_data_plane.envoy.config.core.v3 import (
    ApiVersion,
    BackoffStrategy,
    DataSource,
    GrpcService,
    GrpcServiceEnvoyGrpc,
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
    RetryPolicy,
    RetryPolicyRetryHostPredicate,
    SubstitutionFormatString,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.extensions.access_loggers.grpc.v3 import (
    CommonGrpcAccessLogConfig,
    HttpGrpcAccessLogConfig,
)
from envoy_data_plane.envoy.extensions.content_parsers.json.v3 import (
    JsonContentParser,
    JsonContentParserRuleConfig,
)
from envoy_data_plane.envoy.extensions.filters.common.set_filter_state.v3 import FilterStateValue
from envoy_data_plane.envoy.extensions.filters.http.buffer.v3 import Buffer
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ExternalProcessor,
    MetadataOptions,
    MetadataOptionsMetadataNamespaces,
    ProcessingMode,
    ProcessingModeBodySendMode,
    ProcessingModeHeaderSendMode,
)
from envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 import (
    HeaderMutation,
)
from envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 import (
    Mutations as HeaderMutationMutations,
)
from envoy_data_plane.envoy.extensions.filters.http.json_to_metadata.v3 import (
    JsonToMetadata,
    JsonToMetadataKeyValuePair,
    JsonToMetadataMatchRules,
    JsonToMetadataRule,
    JsonToMetadataSelector,
    JsonToMetadataValueType,
)
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
from envoy_data_plane.envoy.extensions.filters.http.set_filter_state.v3 import (
    Config as SetFilterState,
)
from envoy_data_plane.envoy.extensions.filters.http.sse_to_metadata.v3 import (
    SseToMetadata,
    SseToMetadataProcessingRules,
)
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.envoy.extensions.retry.host.previous_hosts.v3 import PreviousHostsPredicate
from envoy_data_plane.envoy.type.matcher.v3 import RegexMatcher
from envoy_data_plane.envoy.type.v3 import HttpStatus, StatusCode
from envoy_data_plane.google.protobuf import Any

from extproc import contract
from extproc.config import Config
from extproc.envoyconf.usage_chunk import usage_chunk_filter

_USAGE = {
    contract.PROMPT_TOKENS: (
        ("usage", "prompt_tokens"),
        ("usage", "input_tokens"),
        ("response", "usage", "input_tokens"),
        ("message", "usage", "input_tokens"),
    ),
    contract.COMPLETION_TOKENS: (
        ("usage", "completion_tokens"),
        ("usage", "output_tokens"),
        ("response", "usage", "output_tokens"),
        ("message", "usage", "output_tokens"),
    ),
}
"""Where each endpoint's body, or one of its events, tells the tokens: chat and completions; messages
and responses; the last event of a responses stream; the first event of a messages stream."""
_POOL = f"%DYNAMIC_METADATA({contract.NAMESPACE}:pool)%"
_LARGEST_EVENT = 10 << 20
"""Envoy's maximum. The last event of a responses stream repeats the whole answer."""


def ext_proc(config: Config) -> ExternalProcessor:
    """Return the filter that asks the processor."""
    envoy = config.envoy
    forwarded = contract.metadata_namespaces(config)
    return ExternalProcessor(
        grpc_service=processor_service(config),
        failure_mode_allow=envoy.failure_mode == "open",
        status_on_error=HttpStatus(code=StatusCode(envoy.status_on_error)),
        message_timeout=timedelta(seconds=envoy.message_timeout),
        max_message_timeout=_longest(config),
        processing_mode=ProcessingMode(
            request_header_mode=ProcessingModeHeaderSendMode.SKIP,
            request_body_mode=ProcessingModeBodySendMode.BUFFERED,
            request_trailer_mode=ProcessingModeHeaderSendMode.SKIP,
            response_header_mode=ProcessingModeHeaderSendMode.SEND,
            response_body_mode=ProcessingModeBodySendMode.NONE,
            response_trailer_mode=ProcessingModeHeaderSendMode.SKIP,
        ),
        allow_mode_override=True,
        request_attributes=list(contract.request_attributes(config)),
        response_attributes=[contract.UPSTREAM, contract.DETAILS],
        metadata_options=MetadataOptions(
            forwarding_namespaces=MetadataOptionsMetadataNamespaces(untyped=list(forwarded))
            if forwarded
            else None,
            receiving_namespaces=MetadataOptionsMetadataNamespaces(
                untyped=[contract.NAMESPACE, contract.ENDPOINT_NAMESPACE]
            ),
        ),
        stat_prefix=contract.FILTER_NAME,
    )


def _longest(config: Config) -> timedelta | None:
    """Return how far the processor may put off its reply, where it may have to."""
    longest = contract.longest_wait(config)
    return timedelta(seconds=longest) if longest > config.envoy.message_timeout else None


def processor_service(config: Config) -> GrpcService:
    """Return how Envoy calls the processor, with retries of what never reached it.

    Where there are several workers, one that cannot be connected to is passed over for another. A
    single one is not tried again: that would only put off what `failure_mode` says.
    """
    retries = RetryPolicy(
        retry_on="cancelled,refused-stream,unavailable",
        num_retries=2,
        retry_back_off=BackoffStrategy(
            base_interval=timedelta(milliseconds=10), max_interval=timedelta(milliseconds=100)
        ),
    )
    if config.listen.workers > 1:
        retries.retry_on += ",connect-failure"
        retries.retry_host_predicate = [
            RetryPolicyRetryHostPredicate(
                name="envoy.retry_host_predicates.previous_hosts",
                typed_config=Any.pack(PreviousHostsPredicate()),
            )
        ]
        retries.host_selection_retry_max_attempts = 8
    return GrpcService(
        envoy_grpc=GrpcServiceEnvoyGrpc(cluster_name=contract.PROCESSOR_CLUSTER),
        retry_policy=retries,
    )


def processor_log(
    config: Config, name: str, filter_: AccessLogFilter, *, interval: float | None = None
) -> AccessLog:
    """Return a log of Envoy's that the processor gets.

    Args:
        config: where the processor is.
        name: of the log.
        filter_: what is logged.
        interval: seconds between two batches of records at most; None for Envoy's own, a second.
    """
    common = CommonGrpcAccessLogConfig(
        log_name=name,
        grpc_service=processor_service(config),
        transport_api_version=ApiVersion.V3,
        buffer_flush_interval=None if interval is None else timedelta(seconds=interval),
    )
    return AccessLog(
        name="envoy.access_loggers.http_grpc",
        filter=filter_,
        typed_config=Any.pack(HttpGrpcAccessLogConfig(common_config=common)),
    )


def http_filters(config: Config) -> list[HttpFilter]:
    """Return the filters of the standalone listener in their order."""
    return [
        *preceding_filters(config),
        named(contract.FILTER_NAME, ext_proc(config)),
        *following_filters(config),
        named("envoy.filters.http.router", Router(suppress_envoy_headers=True)),
    ]


def preceding_filters(config: Config) -> list[HttpFilter]:
    """Return the filters that must stand before the external processor, nearer to the client.

    The first asks engines for their load, and keeps it from clients; and it asks for answers that
    are not compressed, whatever the client takes: nobody can read the usage out of others for nothing,
    nor leave out what was asked for by us, nor end them early. The second is needed where Envoy reads
    the usage: it leaves out the chunks that the processor asked for to that end.
    """
    asked = ((contract.LOAD_REPORT_FORMAT, "JSON"), ("accept-encoding", "identity"))
    mutations = HeaderMutationMutations(
        request_mutations=[HeaderMutationRule(append=_set(*each)) for each in asked],
        response_mutations=[HeaderMutationRule(remove=contract.LOAD_REPORT)],
    )
    reports = named("tidegate.load_report", HeaderMutation(mutations=mutations))
    if config.envoy.usage_source != "envoy":
        return [reports]
    return [reports, named("tidegate.usage_chunk", usage_chunk_filter())]


def following_filters(config: Config, *, pool_header: bool = False) -> list[HttpFilter]:
    """Return the filters that must stand right after the external processor.

    The processor does not see the request's headers, so they would reach the engine, and open a
    request there, before its verdict on the body. `buffer` holds them until the body comes through,
    and gives a rewritten body its exact ``content-length``. With several pools the route is then
    chosen anew, by the pool that the verdict names: in metadata, and with ``pool_header`` also in
    a header, for control planes whose routes cannot match metadata.
    """
    hold = named("envoy.filters.http.buffer", Buffer(max_request_bytes=config.requests.max_body))
    readers = usage_filters(config)
    if len(config.pools) < 2:
        return [hold, *readers]
    copy = [_pool_header()] if pool_header else []
    return [hold, *copy, _choose_route_anew(), *readers]


def usage_filters(config: Config) -> list[HttpFilter]:
    """Return the filters that read token usage out of JSON and SSE responses into metadata.

    There are none where the processor reads it.
    """
    if config.envoy.usage_source != "envoy":
        return []
    json = JsonToMetadata(
        response_rules=JsonToMetadataMatchRules(
            allow_content_types_regex=RegexMatcher(regex="application/json(;.*)?"),
            rules=_usage_rules(),
        )
    )
    sse = SseToMetadata(
        response_rules=SseToMetadataProcessingRules(
            content_parser=TypedExtensionConfig(
                name="envoy.content_parsers.json",
                typed_config=Any.pack(
                    JsonContentParser(
                        rules=[
                            JsonContentParserRuleConfig(rule=rule, stop_processing_after_matches=0)
                            for rule in _usage_rules()
                        ]
                    )
                ),
            ),
            max_event_size=_LARGEST_EVENT,
        )
    )
    return [
        named("envoy.filters.http.json_to_metadata", json),
        named("envoy.filters.http.sse_to_metadata", sse),
    ]


def _pool_header() -> HttpFilter:
    rule = HeaderMutationRule(append=_set(contract.POOL_HEADER, _POOL))
    mutations = HeaderMutationMutations(request_mutations=[rule])
    return named("envoy.filters.http.header_mutation", HeaderMutation(mutations=mutations))


def _set(name: str, value: str) -> HeaderValueOption:
    return HeaderValueOption(
        header=HeaderValue(key=name, value=value),
        append_action=HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
    )


def _choose_route_anew() -> HttpFilter:
    pool = FilterStateValue(
        object_key="tidegate.pool",
        factory_key="envoy.string",
        format_string=SubstitutionFormatString(text_format_source=DataSource(inline_string=_POOL)),
    )
    message = SetFilterState(on_request_headers=[pool], clear_route_cache=True)
    return named("envoy.filters.http.set_filter_state", message)


def _usage_rules() -> list[JsonToMetadataRule]:
    return [
        JsonToMetadataRule(
            selectors=[JsonToMetadataSelector(key=key) for key in path],
            on_present=JsonToMetadataKeyValuePair(
                metadata_namespace=contract.USAGE_NAMESPACE,
                key=name,
                type=JsonToMetadataValueType.NUMBER,
            ),
        )
        for name, paths in _USAGE.items()
        for path in paths
    ]


def named(name: str, message: betterproto2.Message) -> HttpFilter:
    """Return an HTTP filter with its configuration."""
    return HttpFilter(name=name, typed_config=Any.pack(message))
