"""The filter for Envoy Gateway: an EnvoyExtensionPolicy, and patches for what it cannot say."""

from __future__ import annotations

from typing import Any

from extproc import contract
from extproc.config import Config
from extproc.envoyconf.clusters import UNLIMITED, processor_cluster
from extproc.envoyconf.filters import preceding_filters, usage_filters
from extproc.envoyconf.listener import access_log, steering_headers, upload_timeout
from extproc.envoyconf.render import fields, render

_NOTES = """\
Tidegate in Envoy Gateway: `kubectl apply -f gateway.yaml`.
  - Names (Service, Gateway, listener) come from envoy.kubernetes. Where the Service is in another
    namespace than the Gateway, it needs a ReferenceGrant.
  - An EnvoyExtensionPolicy always sends the request's headers and takes no header as attribute, so
    a call costs one message more than with the other forms; Tidegate serves both.
  - Set envoy.reloadable_features.ext_proc_graceful_grpc_close to true in a static layer of the
    bootstrap's layered_runtime (spec.bootstrap of the EnvoyProxy): Envoy resets its streams to
    Tidegate otherwise, of each of which gRPC's server keeps some 100 bytes for ever.
  - The flood valve (envoy.valve) is not in this form: it needs a runtime layer in the bootstrap.
  - With several pools, match the header x-tidegate-pool in your HTTPRoutes.
  - What the policies have no words for (status_on_error, retries of the processor, the access log to
    Tidegate, the token usage, headers by prefix) is in the EnvoyPatchPolicy, as far as it can be: it
    must be enabled in Envoy Gateway (extensionApis.enableEnvoyPatchPolicy), and its listener is
    named tcp-PORT there where XDSNameSchemeV2 is on. Without it calls are shed as well, but what an
    admitted call used is not reported."""
_API = "gateway.envoyproxy.io/v1alpha1"
_GATEWAY_GROUP = "gateway.networking.k8s.io"
_MANAGER = "/default_filter_chain/filters/0/typed_config"


def gateway(config: Config) -> str:
    """Return the YAML of the policies."""
    return render(
        "gateway",
        _NOTES,
        _extension(config),
        _client_traffic(config),
        _backend_traffic(config),
        _patches(config),
    )


def _extension(config: Config) -> dict[str, Any]:
    envoy, names = config.envoy, config.envoy.kubernetes
    metadata = {
        "accessibleNamespaces": list(contract.metadata_namespaces(config)),
        "writableNamespaces": [contract.NAMESPACE, contract.ENDPOINT_NAMESPACE],
    }
    return _policy(
        config,
        "EnvoyExtensionPolicy",
        {
            "extProc": [
                {
                    "backendRefs": [
                        {"name": names.service, "namespace": names.namespace, "port": names.port}
                    ],
                    "failOpen": envoy.failure_mode == "open",
                    "messageTimeout": _duration(envoy.message_timeout),
                    "processingMode": {
                        "allowModeOverride": True,
                        "request": {"body": "Buffered"},
                        "response": {},
                    },
                    "metadata": {key: value for key, value in metadata.items() if value},
                }
            ]
        },
    )


def _client_traffic(config: Config) -> dict[str, Any]:
    idle = _duration(config.envoy.stream_idle_timeout)
    upload = _duration(upload_timeout(config).total_seconds())
    return _policy(
        config,
        "ClientTrafficPolicy",
        {
            "connection": {"bufferLimit": config.requests.max_body},
            "path": {"escapedSlashesAction": "RejectRequest"},
            "timeout": {"http": {"requestReceivedTimeout": upload, "streamIdleTimeout": idle}},
        },
    )


def _backend_traffic(config: Config) -> dict[str, Any]:
    return _policy(
        config,
        "BackendTrafficPolicy",
        {
            "timeout": {"http": {"requestTimeout": "0s"}},
            "circuitBreaker": {
                "maxConnections": UNLIMITED,
                "maxParallelRequests": UNLIMITED,
                "maxPendingRequests": UNLIMITED,
            },
        },
    )


def _patches(config: Config) -> dict[str, Any]:
    names = config.envoy.kubernetes
    listener = f"{names.gateway_namespace}/{names.gateway}/{names.gateway_listener}"
    processor = f"{names.service}.{names.namespace}.svc.cluster.local:{names.port}"
    return {
        "apiVersion": _API,
        "kind": "EnvoyPatchPolicy",
        "metadata": {"name": contract.FILTER_NAME, "namespace": names.gateway_namespace},
        "spec": {
            "targetRef": {"group": _GATEWAY_GROUP, "kind": "Gateway", "name": names.gateway},
            "type": "JSONPatch",
            "jsonPatches": [
                _add(
                    "cluster",
                    contract.PROCESSOR_CLUSTER,
                    "",
                    fields(processor_cluster(processor, config.listen.workers)),
                ),
                _add("listener", listener, f"{_MANAGER}/access_log/0", fields(access_log(config))),
                _add(
                    "listener",
                    listener,
                    f"{_MANAGER}/early_header_mutation_extensions",
                    [fields(steering_headers())],
                ),
                *(
                    _add("listener", listener, f"{_MANAGER}/http_filters/0", fields(each))
                    for each in [*usage_filters(config), *reversed(preceding_filters(config))]
                ),
            ],
        },
    }


def _policy(config: Config, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    names = config.envoy.kubernetes
    target = {"group": _GATEWAY_GROUP, "kind": "Gateway", "name": names.gateway}
    return {
        "apiVersion": _API,
        "kind": kind,
        "metadata": {"name": contract.FILTER_NAME, "namespace": names.gateway_namespace},
        "spec": {"targetRefs": [target], **spec},
    }


def _add(kind: str, name: str, path: str, value: object) -> dict[str, Any]:
    types = {
        "cluster": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "listener": "type.googleapis.com/envoy.config.listener.v3.Listener",
    }
    return {
        "type": types[kind],
        "name": name,
        "operation": {"op": "add", "path": path, "value": value},
    }


def _duration(seconds: float) -> str:
    """Write a Gateway API duration: whole units, no fractions."""
    return f"{seconds:.0f}s" if seconds == int(seconds) else f"{seconds * 1000:.0f}ms"
