"""Measures Tidegate behind a real Envoy, each figure beside a floor of the same run."""
