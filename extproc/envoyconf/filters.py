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
from envoy_data_plane.envoy.config.core.v3 import (
    BackoffStrategy,
    DataSource,
    GrpcService,
    GrpcServiceEnvoyGrpc,
    RetryPolicy,
    SubstitutionFormatString,
    TypedExtensionConfig,
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
from envoy_data_plane.envoy.type.v3 import HttpStatus, StatusCode
from envoy_data_plane.google.protobuf import Any

from extproc import contract
from extproc.config import Config

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
_LARGEST_EVENT = 10 << 20
"""Envoy's maximum. The last event of a responses stream repeats the whole answer."""


def ext_proc(config: Config) -> ExternalProcessor:
    """Return the filter that asks the processor."""
    envoy = config.envoy
    forwarded = contract.metadata_namespaces(config)
    return ExternalProcessor(
        grpc_service=processor_service(),
        failure_mode_allow=envoy.failure_mode == "open",
        status_on_error=HttpStatus(code=StatusCode(envoy.status_on_error)),
        message_timeout=timedelta(seconds=envoy.message_timeout),
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


def processor_service() -> GrpcService:
    """Return how Envoy calls the processor, with retries of what never reached it."""
    return GrpcService(
        envoy_grpc=GrpcServiceEnvoyGrpc(cluster_name=contract.PROCESSOR_CLUSTER),
        retry_policy=RetryPolicy(
            retry_on="cancelled,refused-stream,unavailable",
            num_retries=2,
            retry_back_off=BackoffStrategy(
                base_interval=timedelta(milliseconds=10), max_interval=timedelta(milliseconds=100)
            ),
        ),
    )


def http_filters(config: Config) -> list[HttpFilter]:
    """Return the filters of the standalone listener in their order."""
    return [
        _filter(contract.FILTER_NAME, ext_proc(config)),
        *after_verdict(config),
        *usage_filters(),
        _filter("envoy.filters.http.router", Router(suppress_envoy_headers=True)),
    ]


def after_verdict(config: Config) -> list[HttpFilter]:
    """Return the filters that must follow the external processor.

    The processor does not see the request's headers, so they would reach the engine, and open a
    request there, before its verdict on the body. `buffer` holds them until the body comes through,
    and gives a rewritten body its exact ``content-length``. With several pools the route is then
    chosen anew, by the pool that the verdict names.
    """
    filters = [
        _filter("envoy.filters.http.buffer", Buffer(max_request_bytes=config.requests.max_body))
    ]
    if len(config.pools) > 1:
        pool = FilterStateValue(
            object_key="tidegate.pool",
            factory_key="envoy.string",
            format_string=SubstitutionFormatString(
                text_format_source=DataSource(
                    inline_string=f"%DYNAMIC_METADATA({contract.NAMESPACE}:pool)%"
                )
            ),
        )
        reroute = SetFilterState(on_request_headers=[pool], clear_route_cache=True)
        filters.append(_filter("envoy.filters.http.set_filter_state", reroute))
    return filters


def usage_filters() -> list[HttpFilter]:
    """Return the filters that read token usage out of JSON and SSE responses into metadata."""
    json = JsonToMetadata(response_rules=JsonToMetadataMatchRules(rules=_usage_rules()))
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
        _filter("envoy.filters.http.json_to_metadata", json),
        _filter("envoy.filters.http.sse_to_metadata", sse),
    ]


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


def _filter(name: str, message: betterproto2.Message) -> HttpFilter:
    return HttpFilter(name=name, typed_config=Any.pack(message))
