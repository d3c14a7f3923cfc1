"""vLLM's side: which endpoints there are, and what their metrics say."""
