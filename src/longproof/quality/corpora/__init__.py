"""Where haystacks come from: text of our own, the Python that runs us, the user's folders, and kept corpora by name."""

from __future__ import annotations

from longproof.quality.corpora.corpus import Corpus, Document, Kind, Skipped, TextCorpus, manifest_of
from longproof.quality.corpora.opening import open_corpus

__all__ = ["Corpus", "Document", "Kind", "Skipped", "TextCorpus", "manifest_of", "open_corpus"]
