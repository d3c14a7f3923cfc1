"""What holds for every test."""

from hypothesis import settings

# How long an example takes is the machine's business: no test depends on the clock.
settings.register_profile("tidegate", deadline=None)
settings.load_profile("tidegate")
