"""A tokenizer with everything around it that decides a prompt's tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from longproof.gateway.chat_template import ChatTemplate

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTokenizer:
    """`before`, `after`: ids that go around a plain text. `chat_bos`: the BOS that goes in front of a rendered chat
    which does not begin with it already, as (text, id). `template` None: chats cannot be counted. `name` says which
    files these were. `expansion`: how many times longer in bytes its normalizer can make a text that is not ASCII."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    name: str
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    chat_bos: tuple[str, int] | None = None
    expansion: int = 1
