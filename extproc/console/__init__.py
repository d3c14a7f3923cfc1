"""The web console: a process of its own, a client of the control API like any other."""
