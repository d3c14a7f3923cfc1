"""The section ``envoy:``: what `tidegate envoy` writes."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Literal

from pydantic import Field

from extproc.config.base import Section
from extproc.config.values import Address, Seconds
from extproc.config.valve import ValveConfig


class Kubernetes(Section):
    """Names in the cluster, for the Istio and the Envoy Gateway form of `tidegate envoy`.

    ``service``, ``namespace`` and ``port`` are those of Tidegate's own Service; it must offer gRPC
    over TCP. Istio: the gateway pods have the labels ``istio_selector``. Envoy Gateway: the Gateway
    and its listener.
    """

    service: str = Field(default="tidegate", min_length=1)
    namespace: str = Field(default="tidegate", min_length=1)
    port: int = Field(default=9002, ge=1, le=65535)
    istio_namespace: str = Field(default="istio-system", min_length=1)
    istio_selector: dict[str, str] = Field(default={"istio": "ingressgateway"}, min_length=1)
    gateway: str = Field(default="eg", min_length=1)
    gateway_namespace: str = Field(default="default", min_length=1)
    gateway_listener: str = Field(default="http", min_length=1)


class EnvoyConfig(Section):
    """What `tidegate envoy` writes.

    ``processor`` is where Envoy reaches Tidegate, where that is not ``listen.processor``;
    ``include_dir`` is where Envoy finds the files that it includes by path. ``usage_source``: who
    reads the token usage out of the answers. Envoy's own filters do (1.40 has them) at no cost here;
    ``ext_proc``, for Envoys without them, sends every answer through Tidegate. A client has
    ``upload_timeout`` for its request, as long as it may have to wait for the verdict on top.
    """

    listener: Address = "0.0.0.0:8080"
    processor: Address | None = None
    include_dir: PurePosixPath = PurePosixPath("/etc/envoy/tidegate")
    admin: Address | None = "127.0.0.1:9901"
    failure_mode: Literal["open", "closed"] = "open"
    status_on_error: Literal[500, 501, 502, 503, 504, 505, 507, 508, 510, 511] = 503
    message_timeout: Seconds = Field(default=15.0, gt=0)
    upload_timeout: Seconds = Field(default=60.0, gt=0)
    stream_idle_timeout: Seconds = 300.0
    usage_source: Literal["envoy", "ext_proc"] = "envoy"
    kubernetes: Kubernetes = Kubernetes()
    valve: ValveConfig | None = None
