"""Restarts a lying engine from outside, as an operator's own command would: for ``--restart-cmd``.

python -m longproof.testing.restart CONTROL_URL

Ends with 0 when the engine listens again, with 1 when it could not be told.
"""

from __future__ import annotations

import sys

import httpx

_TIMEOUT_S = 60.0


def main(arguments: list[str]) -> int:
    """The exit code."""
    if len(arguments) != 1:
        sys.stderr.write(__doc__ or "")
        return 2
    try:
        answer = httpx.post(f"{arguments[0]}/restart", timeout=_TIMEOUT_S)
        answer.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as problem:
        sys.stderr.write(f"cannot restart by {arguments[0]}: {problem}\n")
        return 1
    sys.stdout.write(f"{answer.text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
