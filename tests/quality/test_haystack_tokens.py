"""What the units of a corpus cost, by tokenizers of several families, against each unit counted alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from counting_server import CountingServer, byte_level, glued, marks_merged, sentence_piece
from tokenizers import Tokenizer

from longproof.asking.tally import ServerTally, UsageTally
from longproof.domain.request import Route
from longproof.engines.registry import connect
from longproof.quality.corpora.corpus import Document, TextCorpus
from longproof.quality.corpora.generated import generated
from longproof.quality.haystack import tokenize_corpus
from longproof.quality.unit_tokens import UnitTokens, _absent_word, count_units
from longproof.testing import HONEST, LyingEngine
from longproof.testing.dialects import OPENAI
from longproof.testing.fake_tokenizer import tokenizer

PROSE = generated(seed=1, tokens=1)
CODE = TextCorpus(
    name="code",
    kind="code",
    licence="ours",
    documents=[
        Document(
            name="m.py",
            text="\n\n".join(f"def f{'abcdefgh'[i % 8] * (i // 8 + 1)}():\n\n    return {i}" for i in range(64)),
        )
    ],
)


async def counted(server: CountingServer, corpus: TextCorpus) -> UnitTokens:
    tally = ServerTally(server.engine(), Route.CHAT)
    return await count_units(server.engine(), tally, corpus.units(), corpus.separator)


@pytest.mark.parametrize("train", [byte_level, marks_merged, sentence_piece])
@pytest.mark.parametrize("corpus", [PROSE, CODE], ids=["prose", "code"])
async def test_costs_add_up_in_few_calls_when_tokens_do_not_span_lines(
    train: Callable[[], Tokenizer], corpus: TextCorpus
) -> None:
    server = CountingServer(train())
    found = await counted(server, corpus)
    assert found.how == "ids between marks"
    assert server.tokenized < 10
    assert found.counted.all()
    assert found.drift == 0
    # any run of units, with something behind it, costs its units and that
    behind = len(server.tokenizer.encode("So it began").ids)
    first = len(server.tokenizer.encode("So it began" + corpus.separator + "So it began").ids) - behind
    for begin, end in ((0, 1), (3, 30), (10, 60)):
        text = corpus.separator.join(["So it began", *corpus.units()[begin:end], "So it began"])
        whole = len(server.tokenizer.encode(text).ids)
        assert whole - behind - first == int(found.tokens[begin:end].sum())


async def test_the_difference_is_known_when_tokens_span_lines() -> None:
    server = CountingServer(glued())
    found = await counted(server, PROSE)
    whole = len(server.tokenizer.encode("\n".join(PROSE.units())).ids)
    assert found.drift != 0
    assert int(found.tokens.sum()) * (1 + found.drift) == pytest.approx(whole, rel=0.01)


async def test_costs_are_shared_out_when_the_server_gives_no_ids() -> None:
    server = CountingServer(byte_level(), gives_ids=False)
    found = await counted(server, PROSE)
    probed = np.flatnonzero(found.counted)
    assert len(probed) == 64
    for number in probed:
        alone = len(server.tokenizer.encode(PROSE.units()[number] + "\nSo it began").ids)
        assert int(found.tokens[number]) == alone - len(server.tokenizer.encode("So it began").ids)


async def test_another_mark_is_drawn_when_the_corpus_holds_the_first_ones() -> None:
    first = _absent_word(["nothing of the kind"])
    second = _absent_word([f"it holds {first}"])
    assert first is not None
    assert second is not None
    assert first != second
    texts = "\n\n".join([*PROSE.units()[:50], f"A line with {first} in it.", f"And {second}s in another."])
    corpus = TextCorpus(name="m", kind="prose", licence="ours", documents=[Document(name="a.txt", text=texts)])
    found = await counted(CountingServer(byte_level()), corpus)
    assert (found.how, len(found.tokens)) == ("ids between marks", 52)


async def test_small_requests_tell_the_costs_when_the_server_only_answers() -> None:
    with LyingEngine(replace(HONEST, dialect=OPENAI)) as url:
        client = await connect(url)
        try:
            found = await count_units(client, UsageTally(client, Route.CHAT), PROSE.units(), PROSE.separator)
        finally:
            await client.aclose()
    whole = len(tokenizer().encode("\n".join(PROSE.units())))
    assert found.counted.sum() == 16
    assert int(found.tokens.sum()) == pytest.approx(whole, rel=0.05)


async def test_a_corpus_is_tokenized_by_the_server_that_serves() -> None:
    with LyingEngine() as url:
        client = await connect(url)
        try:
            corpus = await tokenize_corpus(client, PROSE, route=Route.CHAT)
            whole = len(await client.tokenize(corpus.text))
        finally:
            await client.aclose()
    assert (corpus.how, corpus.drift) == ("ids between marks", 0)
    assert corpus.total_tokens == whole


async def test_a_large_corpus_is_sampled_when_the_longest_item_is_short() -> None:
    """16 items of 100 tokens at 5 characters and 250,000 more are 258,000 characters, of 500,000 or more."""
    large = generated(seed=1, tokens=100_000)
    server = CountingServer(byte_level())
    corpus = await tokenize_corpus(server.engine(), large, route=Route.CHAT, longest_tokens=100)
    units = [corpus.unit(number) for number in range(len(corpus.tokens))]
    assert 200_000 < sum(map(len, units)) < 300_000
    places = [large.units().index(unit) for unit in units]
    assert places == sorted(set(places))
    assert places[-1] > 0.9 * len(large.units())
    whole = await tokenize_corpus(server.engine(), PROSE, route=Route.CHAT, longest_tokens=100)
    assert len(whole.tokens) == len(PROSE.units())
