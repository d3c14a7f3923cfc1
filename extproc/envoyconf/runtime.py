"""Envoy's runtime: how it takes leave of us, and where it asks for the flood valve's shares.

Rule this module keeps: whoever operates Envoy has the last word, by ``/runtime_modify``.
"""

from __future__ import annotations

from envoy_data_plane.envoy.config.bootstrap.v3 import (
    LayeredRuntime,
    RuntimeLayer,
    RuntimeLayerAdminLayer,
)
from envoy_data_plane.google.protobuf import Struct, Value

from extproc.config import Config
from extproc.envoyconf.valve import valve_layer

GRACEFUL_CLOSE = "envoy.reloadable_features.ext_proc_graceful_grpc_close"
"""Whether Envoy ends an ext_proc stream as gRPC means it, and does not reset it right after."""


def runtime(config: Config) -> LayeredRuntime:
    """Return the layers of Envoy's runtime; later ones win."""
    graceful = Struct(fields={GRACEFUL_CLOSE: Value(bool_value=True)})
    valve = valve_layer(config)
    return LayeredRuntime(
        layers=[
            RuntimeLayer(name="streams", static_layer=graceful),
            *([] if valve is None else [valve]),
            RuntimeLayer(name="admin", admin_layer=RuntimeLayerAdminLayer()),
        ]
    )
