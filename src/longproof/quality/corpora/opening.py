"""From what the user wrote to a corpus: ``generated``, ``python``, a kept name, or a folder."""

from __future__ import annotations

from pathlib import Path

from longproof.errors import CorpusError
from longproof.quality.corpora import generated, python_own
from longproof.quality.corpora.corpus import Kind, TextCorpus
from longproof.quality.corpora.directory import directory_corpus
from longproof.quality.corpora.kept import kept_corpora, kept_named, open_kept
from longproof.quality.corpora.packages import KNOWN

DEFAULTS: dict[Kind, str] = {"prose": generated.NAME, "code": python_own.NAME}
"""What is used where the user names no corpus."""


def open_corpus(source: str | None, *, kind: Kind, seed: int, tokens: int, cache: Path | None = None) -> TextCorpus:
    """The corpus that `source` names, of one kind; None is the default of the kind.

    `tokens` is the longest item it has to fill: the generated one is made that long, and of 'python' no more is read
    than that takes.
    A kept name wins over a folder of the same name: write ``./NAME`` for that. Raises CorpusError for a source that
    cannot be found or read, or has nothing of the kind.
    """
    wanted = source or DEFAULTS[kind]
    if wanted == generated.NAME:
        if kind == "code":
            raise CorpusError(
                "the corpus 'generated' is prose, and these tasks need code",
                advice=f"use '{python_own.NAME}' or a folder with source files for them",
            )
        return generated.generated(seed=seed, tokens=tokens)
    if wanted == python_own.NAME:
        return python_own.python_corpus(kind=kind, tokens=tokens)
    if kept_named(wanted, cache=cache) is not None:
        return open_kept(wanted, kind=kind, cache=cache)
    if Path(wanted).exists():
        return directory_corpus(Path(wanted), kind=kind)
    raise CorpusError(f"'{wanted}' is neither a kept corpus nor a folder", advice=_what_there_is(wanted, cache))


def _what_there_is(wanted: str, cache: Path | None) -> str:
    if wanted in KNOWN:
        return f"fetch it once: longproof corpus add {wanted} ({KNOWN[wanted].megabytes} MB)"
    kept = [entry.name for entry in kept_corpora(cache=cache)]
    return f"there are: {', '.join([generated.NAME, python_own.NAME, *kept])}; or name a folder"
