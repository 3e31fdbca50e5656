"""How hard the fuzzers look: a minute in all in the suite, at always the same; as long as you like with `make fuzz`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

# Nothing is kept between runs in the suite, so that a run is red for what was changed and for nothing else.
_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile(
    "suite", max_examples=400, derandomize=True, database=None, deadline=None, suppress_health_check=_QUIET
)
settings.register_profile(
    "long",
    max_examples=int(os.environ.get("MICROSIM_FUZZ_EXAMPLES", "200000")),
    deadline=None,
    suppress_health_check=_QUIET,
    phases=[*Phase],
    print_blob=True,
)
settings.load_profile("suite")  # the flag --hypothesis-profile, read later, wins
