"""The JSON of answers, chunk by chunk, in each dialect's shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from longproof.testing.dialects import LLAMACPP, OPENAI, Dialect, Json
from longproof.testing.fake_model import TokenChoice
from longproof.testing.fake_tokenizer import tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one chunk carries: text of one or more tokens and, where asked for, the choices at each. `field` is the
    delta's field."""

    text: str
    field: str = "content"
    choices: tuple[tuple[TokenChoice, ...], ...] | None = None


@dataclass(slots=True, kw_only=True)
class Shapes:
    """Builds the chunks of one answer. Counts characters for the old text_offset lists, hence not frozen."""

    dialect: Dialect
    answer_id: str
    created: int
    model: str
    chat: bool
    top_logprobs: int | None
    _offset: int = field(default=0, init=False)

    def role(self, content: Any) -> Json:
        """The role-only chunk. `content`: None, "" or `...` for no such field."""
        delta: Json = {"role": "assistant"} if content is ... else {"role": "assistant", "content": content}
        return self._chunk({"finish_reason": None, "index": 0, "delta": delta})

    def token(self, piece: Piece, finish: str | None = None) -> Json:
        """A chunk with content."""
        if self.chat:
            choice: Json = {"finish_reason": finish, "index": 0, "delta": {piece.field: piece.text}}
            if piece.choices is not None:
                choice["logprobs"] = {"content": self._new_logprobs(piece.choices)}
            return self._chunk(choice)
        logprobs = None if piece.choices is None else self._completion_logprobs(piece.choices)
        return self._chunk({"text": piece.text, "index": 0, "logprobs": logprobs, "finish_reason": finish})

    def finish(self, reason: str | None) -> Json:
        """A chunk with the finish_reason alone."""
        if self.chat:
            return self._chunk({"finish_reason": reason, "index": 0, "delta": {}})
        return self._chunk({"text": "", "index": 0, "logprobs": None, "finish_reason": reason})

    def usage_chunk(self, usage: Json, timings: Json | None) -> Json:
        """The last chunk of stream_options.include_usage: no choices."""
        chunk = {**self._chunk(None), "usage": usage}
        return chunk if timings is None else {**chunk, "timings": timings}

    def whole(self, pieces: Sequence[Piece], reason: str | None, usage: Json | None, timings: Json | None) -> Json:
        """The answer of a request without streaming."""
        texts: dict[str, str] = {"content": ""}
        for piece in pieces:
            texts[piece.field] = texts.get(piece.field, "") + piece.text
        flat = tuple(choice for piece in pieces for choice in piece.choices or ())
        asked = self.top_logprobs is not None
        if self.chat:
            choice: Json = {"finish_reason": reason, "index": 0, "message": {"role": "assistant", **texts}}
            if asked:
                choice["logprobs"] = {"content": self._new_logprobs(flat)}
        else:
            logprobs = self._completion_logprobs(flat) if asked else None
            choice = {"text": texts["content"], "index": 0, "logprobs": logprobs, "finish_reason": reason}
        answer = self._chunk(choice)
        answer["object"] = "chat.completion" if self.chat else "text_completion"
        if usage is not None:
            answer["usage"] = usage
        return answer if timings is None else {**answer, "timings": timings}

    def _chunk(self, choice: Json | None) -> Json:
        chunk: Json = {
            "choices": [] if choice is None else [choice],
            "created": self.created,
            "id": self.answer_id,
            "model": self.model,
            "object": "chat.completion.chunk" if self.chat else "text_completion",
        }
        if self.dialect is LLAMACPP:
            chunk["system_fingerprint"] = "b7000-fake"
        return chunk

    def _completion_logprobs(self, choices: Sequence[tuple[TokenChoice, ...]]) -> Json:
        if not self.dialect.legacy_logprobs:
            return {"content": self._new_logprobs(choices)}
        texts = [_text(position[0]) for position in choices]
        offsets: list[int] = []
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [position[0].logprob for position in choices],
            "top_logprobs": [{_text(choice): choice.logprob for choice in position} for position in choices],
            "text_offset": offsets,
        }

    def _new_logprobs(self, choices: Sequence[tuple[TokenChoice, ...]]) -> list[Json]:
        listed: list[Json] = []
        for position in choices:
            top = [self._entry(choice) for choice in position[: self.top_logprobs or 0]]
            listed.append({**self._entry(position[0]), "top_logprobs": top})
        return listed

    def _entry(self, choice: TokenChoice) -> Json:
        raw = tokenizer().token_bytes(choice.token)
        entry: Json = {"token": _text(choice), "bytes": list(raw), "logprob": choice.logprob}
        return {"id": choice.token, **entry} if self.dialect is LLAMACPP else entry


def usage_object(dialect: Dialect, *, prompt: int, completion: int, cached: int | None, reasoning: int) -> Json:
    """A usage object. `cached` None: the server does not report it."""
    usage: Json = {"completion_tokens": completion, "prompt_tokens": prompt, "total_tokens": prompt + completion}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    if reasoning and dialect is OPENAI:
        usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return usage


def timings(*, cached: int, processed: int, prompt_s: float, predicted: int, predicted_s: float) -> Json:
    """llama.cpp's own account of a request (server-task.cpp, result_timings)."""
    prompt_ms, predicted_ms = prompt_s * 1e3, predicted_s * 1e3
    return {
        "cache_n": cached,
        "prompt_n": processed,
        "prompt_ms": round(prompt_ms, 3),
        "prompt_per_token_ms": prompt_ms / processed if processed else 0.0,
        "prompt_per_second": processed / prompt_s if prompt_s else 0.0,
        "predicted_n": predicted,
        "predicted_ms": round(predicted_ms, 3),
        "predicted_per_token_ms": predicted_ms / predicted if predicted else 0.0,
        "predicted_per_second": predicted / predicted_s if predicted_s else 0.0,
    }


def _text(choice: TokenChoice) -> str:
    return tokenizer().decode([choice.token])
