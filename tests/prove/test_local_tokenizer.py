"""A server that does not count, and a tokenizer on our side: a fallback that is named as one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from proof import OPTIONS, Silent, said
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from longproof.claim.statements import Finding, Statement
from longproof.clock import SystemClock
from longproof.prove.run import prove
from longproof.prove.target import UrlTarget
from longproof.testing.behaviour import Behaviour
from longproof.testing.dialects import OPENAI
from longproof.testing.fake_tokenizer import FIRST_WORD
from longproof.testing.fake_tokenizer import tokenizer as fake_tokenizer
from longproof.testing.lies import Lie, WrongUsage
from longproof.testing.lying_engine import lying_engine


def matching_tokenizer(path: Path) -> Path:
    """The fake engine's own vocabulary, cut greedily like its own: the right tokenizer.json for it."""
    fake = fake_tokenizer()
    pieces = {fake.token_bytes(token).decode().removeprefix(" ") for token in range(FIRST_WORD, fake.size)}
    vocabulary = {piece: at for at, piece in enumerate(sorted(pieces | {"[UNK]"}))}
    tokenizer = Tokenizer(
        models.WordPiece(vocabulary, unk_token="[UNK]", continuing_subword_prefix="", max_input_chars_per_word=1000)
    )
    apart = [
        pre_tokenizers.Split(Regex(r"\n"), "isolated"),
        pre_tokenizers.Split(" ", "removed"),
        pre_tokenizers.Punctuation(),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(apart)
    tokenizer.save(str(path))
    return path


async def proved(tmp_path: Path, *lies: Lie) -> Path:
    directory = tmp_path / "evidence"
    tokenizer = matching_tokenizer(tmp_path / "tokenizer.json")
    async with lying_engine(Behaviour(dialect=OPENAI, window_tokens=2048).lying(*lies)) as url:
        target = UrlTarget(url=url, tokenizer=str(tokenizer))
        options = replace(OPTIONS, only=("speed",), context_tokens=2048)
        await prove(target, options, directory, clock=SystemClock(), watcher=Silent())
    return directory


async def test_agreement_is_told_as_the_local_tokenizers(tmp_path: Path) -> None:
    items = said(await proved(tmp_path))
    statement = next(item for item in items if isinstance(item, Statement) and item.id.endswith("agreement.local"))
    assert statement.conditions == {"counted_by": "local tokenizer"}
    assert statement.n > 0
    assert "local tokenizer" in statement.text
    assert not [item for item in items if isinstance(item, Finding) and item.id.startswith("accounting.usage_wrong")]


async def test_a_difference_is_a_caution_that_names_both_causes(tmp_path: Path) -> None:
    items = said(await proved(tmp_path, WrongUsage(prompt_offset=3, above_tokens=500)))
    finding = next(item for item in items if isinstance(item, Finding) and item.id == "accounting.local_count_differs")
    assert "not the server's tokenizer, or usage is wrong" in finding.text
