"""The open-loop load generator, and `tidegate load`."""
