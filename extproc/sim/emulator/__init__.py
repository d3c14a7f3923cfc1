"""A vLLM server without a model: the engine model behind vLLM's HTTP endpoints."""

from extproc.sim.emulator.server import Emulator, EmulatorOptions, serve

__all__ = ["Emulator", "EmulatorOptions", "serve"]
