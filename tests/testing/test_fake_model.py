"""The fake model speaks of what it read, and of nothing else."""

from __future__ import annotations

from longproof.testing.fake_model import answer_to, speak
from longproof.testing.fake_tokenizer import tokenizer

QUESTION = "What are the HEAD, MIDDLE and TAIL codes? Answer with the three numbers only."


def encode(text: str) -> list[int]:
    return tokenizer().encode(text)


def test_codes_are_answered_in_the_questions_order_when_all_were_read() -> None:
    text = f"The TAIL code is 1177. The HEAD code is 4821. So be it. The MIDDLE code is 7360. {QUESTION}"
    assert answer_to(encode(text)) == "4821 7360 1177"


def test_a_code_is_left_out_when_it_was_not_read() -> None:
    assert answer_to(encode(f"The MIDDLE code is 7360. The TAIL code is 1177. {QUESTION}")) == "7360 1177"
    assert answer_to(encode(QUESTION)) == "I do not know any code."


def test_nothing_is_answered_when_the_question_was_not_read() -> None:
    assert answer_to(encode("The HEAD code is 4821.")) is None
    # a question asked 300 words ago is not what the prompt ends in
    assert answer_to(encode(QUESTION + " word" * 300)) is None


def test_the_answer_ends_by_itself_unless_the_end_is_ignored() -> None:
    read = encode(f"The HEAD code is 4821. {QUESTION}")
    free = speak(read, max_tokens=20, ignore_end=False)
    assert (tokenizer().decode(free.tokens), free.ended) == ("4821", True)
    forced = speak(read, max_tokens=20, ignore_end=True)
    assert (len(forced.tokens), forced.ended) == (20, False)
    assert tokenizer().decode(forced.tokens).startswith("4821 ")
    # four digits fill an allowance of four: it was stopped, it did not end
    assert not speak(read, max_tokens=4, ignore_end=False).ended


def test_words_are_as_many_as_asked_when_there_is_no_question() -> None:
    for multibyte in (False, True):
        for count in (0, 1, 2, 7):
            speech = speak(encode("Tell me a story."), max_tokens=count, ignore_end=False, multibyte=multibyte)
            assert len(speech.tokens) == count
            tokenizer().decode_bytes(speech.tokens).decode()  # never ends inside a character


def test_speech_and_logprobs_are_the_same_only_when_what_was_read_is_the_same() -> None:
    one, same, other = (speak(encode(text), max_tokens=4, ignore_end=False) for text in ("a b c", "a b c", "a b d"))
    assert one.tokens == same.tokens
    assert one.choices(0, 5) == same.choices(0, 5)
    assert one.choices(0, 5) != other.choices(0, 5)


def test_logprobs_fall_and_begin_with_the_chosen_token() -> None:
    speech = speak(encode("Tell me a story."), max_tokens=3, ignore_end=False)
    for position, token in enumerate(speech.tokens):
        choices = speech.choices(position, 20)
        assert choices[0].token == token
        assert len({choice.token for choice in choices}) == 20
        logprobs = [choice.logprob for choice in choices]
        assert logprobs == sorted(logprobs, reverse=True)
        assert logprobs[0] < 0
