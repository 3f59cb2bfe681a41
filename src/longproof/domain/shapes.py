"""What a request asks for, in tokens, before anything is decided about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """One request. Its input is `content_tokens` (what the user sent) and `template_tokens` (what the chat template and
    special tokens add); both, and the output allowance, share the model's window.

    `output_tokens` is the allowance (max_tokens), not what will be produced. Raises ValueError for a negative count.
    """

    content_tokens: int
    output_tokens: int
    template_tokens: int = 0

    def __post_init__(self) -> None:
        if min(self.content_tokens, self.template_tokens, self.output_tokens) < 0:
            raise ValueError(f"a count of tokens is negative: {self}")

    @property
    def input_tokens(self) -> int:
        """Tokens the server prefills: content, template and special tokens."""
        return self.content_tokens + self.template_tokens

    @property
    def total_tokens(self) -> int:
        """Tokens the request occupies when it has produced everything it may."""
        return self.input_tokens + self.output_tokens
