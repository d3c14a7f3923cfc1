"""Decisions. Pure: no I/O, no asyncio, no protobuf, no wall clock; ``now`` is passed in."""
