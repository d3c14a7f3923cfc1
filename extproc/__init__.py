"""Tidegate: an Envoy external processor that keeps paying LLM traffic alive in a peak.

One request meets the packages in this order: ``edge`` (Envoy's side), ``openai`` (what the body
means), ``core`` (the decision), ``engines`` (what vLLM reports). ``app`` wires them; ``sim`` runs
the same core against a model of an engine.
"""

__version__ = "0.1.0"
