"""What operators see: Prometheus metrics, probes and logs."""
