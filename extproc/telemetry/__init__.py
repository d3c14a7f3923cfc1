"""What operators see: Prometheus metrics and the decision log."""
