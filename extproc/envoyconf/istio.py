"""The filter as an Istio EnvoyFilter, for gateways that Istio runs.

Istio keeps its own listener, routes and engine clusters; this adds Tidegate to them.
"""

from __future__ import annotations

from typing import Any

from extproc import contract
from extproc.config import Config
from extproc.envoyconf.clusters import processor_cluster
from extproc.envoyconf.filters import ext_proc, following_filters, named, preceding_filters
from extproc.envoyconf.listener import access_log, guarded_manager
from extproc.envoyconf.render import fields, render

_MANAGER = "envoy.filters.network.http_connection_manager"
_MANAGER_TYPE = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_NOTES = """\
Tidegate in an Istio gateway: `kubectl apply -f istio.yaml`.
  - Names (Service, namespaces, labels of the gateway) come from envoy.kubernetes.
  - Routes stay yours. A VirtualService cannot match metadata: with several pools, match the header
    x-tidegate-pool, which is set from the verdict and never taken from a client.
  - Set envoy.reloadable_features.ext_proc_graceful_grpc_close to "true" in the gateway's
    runtimeValues (annotation proxy.istio.io/config): Envoy resets its streams to Tidegate
    otherwise, of each of which gRPC's server keeps some 100 bytes for ever.
  - Tested as Envoy 1.40 configuration; an older Envoy refuses filters that it does not know.
  - The flood valve (envoy.valve) is not in this form: it needs a runtime layer in the bootstrap.
  - `balance: pick` needs an override_host balancer in the engines' cluster: use `balance: envoy`."""


def istio(config: Config) -> str:
    """Return the YAML of the EnvoyFilter."""
    names = config.envoy.kubernetes
    processor = f"{names.service}.{names.namespace}.svc.cluster.local:{names.port}"
    filters = [
        *preceding_filters(config),
        named(contract.FILTER_NAME, ext_proc(config)),
        *following_filters(config, pool_header=True),
    ]
    manager = {
        "name": _MANAGER,
        "typed_config": {
            "@type": f"type.googleapis.com/{_MANAGER_TYPE}",
            **fields(guarded_manager(config)),
            "access_log": [fields(access_log(config))],
        },
    }
    patches = [
        _patch("CLUSTER", {}, "ADD", fields(processor_cluster(processor, config.listen.workers))),
        _patch("NETWORK_FILTER", _in_manager(), "MERGE", manager),
        *(
            _patch("HTTP_FILTER", _in_manager("envoy.filters.http.router"), "INSERT_BEFORE", each)
            for each in map(fields, filters)
        ),
        _patch(
            "VIRTUAL_HOST",
            {"routeConfiguration": {}},
            "MERGE",
            {"request_body_buffer_limit": config.requests.max_body},
        ),
        _patch("HTTP_ROUTE", {"routeConfiguration": {}}, "MERGE", {"route": {"timeout": "0s"}}),
    ]
    document = {
        "apiVersion": "networking.istio.io/v1alpha3",
        "kind": "EnvoyFilter",
        "metadata": {"name": contract.FILTER_NAME, "namespace": names.istio_namespace},
        "spec": {
            "workloadSelector": {"labels": dict(names.istio_selector)},
            "configPatches": patches,
        },
    }
    return render("istio", _NOTES, document)


def _in_manager(sub_filter: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"name": _MANAGER}
    if sub_filter is not None:
        found["subFilter"] = {"name": sub_filter}
    return {"listener": {"filterChain": {"filter": found}}}


def _patch(
    apply_to: str, place: dict[str, Any], operation: str, value: dict[str, Any]
) -> dict[str, Any]:
    return {
        "applyTo": apply_to,
        "match": {"context": "GATEWAY", **place},
        "patch": {"operation": operation, "value": value},
    }
