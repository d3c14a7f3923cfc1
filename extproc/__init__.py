"""Tidegate: an Envoy external processor that keeps paying LLM traffic alive in a peak.

One request meets the packages in this order: ``edge`` (Envoy's side), ``openai`` (what the body
means), ``core`` (the decision), ``engines`` (what vLLM reports). ``app`` wires them; ``sim`` runs
the same core against a model of an engine.

Rule this module keeps: gRPC is told how to listen before anyone can import it, because it reads
that once. With its EventEngine every message crosses one thread more than with the poller that
grpc.aio has anyway; ``docs/decisions.md`` has what that costs. Whoever sets ``GRPC_EXPERIMENTS``
knows better.
"""

import os

os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")

__version__ = "0.1.0"
