"""Plans, holds and what becomes of them: who may still spend how much."""
