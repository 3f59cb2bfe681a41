"""What differs between vLLM releases in how KV memory becomes blocks, tokens and refusals.

Each gate names the change and where it was read. Between a nightly and the release of the same number a change may be
on either side; `log_lines` then gives both candidates.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

NEWEST: tuple[int, int] = (0, 32)
"""The release these rules were read in; a version that is not said is taken for it."""


class LogLine(StrEnum):
    """What "GPU KV cache size: N tokens" counts."""

    PER_GROUP = "per group"
    """num_blocks // groups x smallest block x DCP (before 0.21)."""
    PER_LENGTH = "per length"
    """int(concurrency x max_model_len) (0.21, pull request 40694)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRules:
    """The rules of one release. `known` False: the version was not given and NEWEST was assumed."""

    release: tuple[int, int]
    known: bool
    log_lines: tuple[LogLine, ...]
    reserves_in_flight: bool
    """Windowed groups keep one window plus the tokens of every batch in flight (0.26; earlier one batch)."""
    reserves_null_block: bool
    """The start-up check leaves out the null block (pull request 47272, July 2026, 0.26)."""
    checks_whole_model: bool
    """With pipelines the whole model's need is held against one stage (0.14 and 0.15; fixed by 33698)."""
    groups_by_kind: bool
    """Windowed layers have their own block tables (hybrid KV cache manager, 0.10), not a full layer's."""
    hybrids_cache_prefixes: bool
    """Prefix caching is on by default for models with recurrent state (pull request 50991, August 2026, 0.28)."""
    packs_compressed: bool
    """DeepSeek V4 is grouped by equal blocks and packed side by side; seen to hold from 0.28, earlier not read."""
    large_gpu_doubles_batch: bool
    """Devices of 160 GiB and more take max_num_batched_tokens 16384 by default (pull request 51726, 0.28)."""


def parse_release(version: str) -> tuple[int, int] | None:
    """(major, minor) of a version text such as ``0.20.2rc1.dev249``; None when it names none.

    ``0.1.dev20073+g8e685d198`` is what a build without tags calls itself: no release.
    """
    found = re.search(r"(\d+)\.(\d+)(\.dev)?", version)
    return (int(found[1]), int(found[2])) if found and not (found[3] and found[2] == "1") else None


def rules_for(version: str) -> ReleaseRules:
    """The rules of `version`; those of NEWEST when it is empty or names no release."""
    parsed = parse_release(version)
    release = parsed or NEWEST
    return ReleaseRules(
        release=release,
        known=parsed is not None,
        log_lines=_log_lines(release),
        reserves_in_flight=release >= (0, 26),
        reserves_null_block=release >= (0, 26),
        checks_whole_model=(0, 14) <= release < (0, 16),
        groups_by_kind=release >= (0, 10),
        hybrids_cache_prefixes=release >= (0, 28),
        packs_compressed=release >= (0, 28),
        large_gpu_doubles_batch=release >= (0, 28),
    )


def _log_lines(release: tuple[int, int]) -> tuple[LogLine, ...]:
    if release >= (0, 21):
        return (LogLine.PER_LENGTH,)
    if release == (0, 20):
        # The change was merged while 0.20 builds were current: nightlies numbered 0.20.x print the new line.
        return (LogLine.PER_GROUP, LogLine.PER_LENGTH)
    return (LogLine.PER_GROUP,)
