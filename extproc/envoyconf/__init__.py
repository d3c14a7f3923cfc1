"""Envoy configuration, built and validated from envoy-data-plane messages."""
