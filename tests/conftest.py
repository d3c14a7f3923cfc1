"""What holds for every test."""

import os

from hypothesis import settings

# How long an example takes is the machine's business: no test depends on the clock.
settings.register_profile("tidegate", deadline=None)
# `make fuzz`: the same tests for much longer, each time with other examples.
settings.register_profile("fuzz", deadline=None, max_examples=20_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "tidegate"))
