"""The control API: state, modes, thresholds, attribution, for operators and their console."""
