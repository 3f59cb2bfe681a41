"""What an engine is after a restart, when it lies about being the same."""

from __future__ import annotations

from longproof.testing.behaviour import Behaviour
from longproof.testing.lie import find
from longproof.testing.lies_of_load import RestartChanges


def after_restart(behaviour: Behaviour) -> Behaviour:
    """The behaviour of the second life and all that follow: as before, but for `restart_changes`."""
    lie = find(behaviour.lies, RestartChanges)
    if lie is None:
        return behaviour
    return behaviour.but(
        window_tokens=round(behaviour.window_tokens * lie.window_scale),
        kv_capacity_tokens=round(behaviour.pool_tokens * lie.kv_scale),
        cache_entries=0 if lie.cache == "off" else behaviour.cache_entries,
        prefill_tokens_per_s=behaviour.prefill_tokens_per_s / lie.slower,
        token_s=behaviour.token_s * lie.slower,
    )
