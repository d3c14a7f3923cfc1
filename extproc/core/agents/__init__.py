"""Agent runs: who belongs to which, what a run may still do, and which of its calls are useless."""
