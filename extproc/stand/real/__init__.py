"""``tidegate drill --real``: the drill in real time, through a real Envoy."""
