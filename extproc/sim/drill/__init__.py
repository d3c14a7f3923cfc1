"""Drills: a peak played in virtual time against the engine model, with the controller that serves."""
