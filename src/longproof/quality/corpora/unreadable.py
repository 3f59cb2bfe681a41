"""Why a file is left out."""

from __future__ import annotations


class Unreadable(Exception):  # noqa: N818 - not an error: the file is listed as skipped, with these words
    """A file that cannot be read as text. The message is the reason, in a few words."""
