"""A model of a vLLM engine, and the emulator that puts it behind the OpenAI endpoints."""
