"""Wires the rooms of the house together."""
