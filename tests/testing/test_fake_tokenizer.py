"""The fake tokenizer is reversible, additive over words, and stable."""

from __future__ import annotations

import jinja2
from hypothesis import given
from hypothesis import strategies as st

from longproof.testing.fake_tokenizer import CHAT_TEMPLATE, SPECIAL_TOKENS, render_chat, tokenizer

WORDS = st.text(alphabet=st.characters(codec="utf-8", exclude_characters=" "), min_size=1, max_size=8)


@given(st.text())
def test_decoding_gives_the_text_back_when_any_text_is_encoded(text: str) -> None:
    for parse_special in (True, False):
        assert tokenizer().decode(tokenizer().encode(text, parse_special=parse_special)) == text


@given(st.lists(WORDS, min_size=1, max_size=12))
def test_counts_add_up_when_text_is_built_word_by_word(words: list[str]) -> None:
    encode = tokenizer().encode
    whole = encode("".join(" " + word for word in words), parse_special=False)
    assert len(whole) == sum(len(encode(" " + word, parse_special=False)) for word in words)


@given(st.lists(st.integers(min_value=0, max_value=tokenizer().size - 1), max_size=20))
def test_every_id_can_be_decoded_when_it_is_below_the_size(ids: list[int]) -> None:
    assert tokenizer().valid(ids)
    assert isinstance(tokenizer().decode_bytes(ids), bytes)


def test_ids_are_the_same_in_every_process() -> None:
    # specials 0-3, bytes 4-259, letters a-z 260-285, A-Z 286-311: "i" is 260 + 8, so "Hi" = "H" (286 + 7), "i"
    assert tokenizer().encode("Hi") == [293, 268]
    # U+00E9 is C3 A9 in UTF-8: 4 + 195, 4 + 169
    assert tokenizer().encode("é") == [199, 173]


def test_digits_are_one_token_each_when_they_follow_a_space() -> None:
    ids = tokenizer().encode(" the 4821.")
    assert [tokenizer().decode([token]) for token in ids] == [" the", " ", "4", "8", "2", "1", "."]


def test_special_spelling_is_plain_text_when_special_is_not_parsed() -> None:
    assert len(tokenizer().encode("<|im_start|>")) == 1
    assert len(tokenizer().encode("<|im_start|>", parse_special=False)) > 1


def test_unknown_words_are_cut_into_syllables_and_letters() -> None:
    ids = tokenizer().encode(" badokemix")
    assert [tokenizer().decode([token]) for token in ids] == [" bado", "kemi", "x"]


def test_rendering_equals_the_published_template() -> None:
    template = jinja2.Environment(autoescape=False, keep_trailing_newline=True).from_string(CHAT_TEMPLATE)
    chats = [
        [("user", "Hi")],
        [("system", "Be brief."), ("user", "Hi"), ("assistant", "Yes."), ("user", "{{ no }} template\n")],
    ]
    for chat in chats:
        for generate in (True, False):
            messages = [{"role": role, "content": content} for role, content in chat]
            expected = template.render(messages=messages, add_generation_prompt=generate)
            assert render_chat(chat, add_generation_prompt=generate) == expected


def test_template_costs_tokens_when_a_chat_is_rendered() -> None:
    ids = tokenizer().encode(render_chat([("user", "Hi")]))
    markers = [token for token in ids if token < len(SPECIAL_TOKENS)]
    # system turn 2 markers, user turn 2, the assistant's opening 1
    assert len(markers) == 5
