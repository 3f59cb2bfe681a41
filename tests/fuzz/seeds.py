"""Well-formed inputs of every target, from which mutations start."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import orjson


def _gguf_file() -> bytes:
    def text(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    entries = [
        text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama"),
        text(b"llama.context_length") + struct.pack("<II", 4, 8192),
        text(b"llama.block_count") + struct.pack("<II", 4, 2),
        text(b"llama.attention.head_count") + struct.pack("<II", 4, 4),
        text(b"llama.embedding_length") + struct.pack("<II", 4, 64),
        text(b"general.alignment") + struct.pack("<II", 4, 32),
        text(b"tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text(b"a") + text(b"b"),
        text(b"tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, 2) + struct.pack("<ff", 0.0, 1.0),
        text(b"x.nested") + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ", 4, 1) + struct.pack("<I", 7),
    ]
    tensor = text(b"blk.0.attn_q.weight") + struct.pack("<IQQIQ", 2, 8, 4, 0, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(entries)) + b"".join(entries) + tensor
    return head + b"\0" * (-len(head) % 32) + b"\0" * 128


_IDS = list(range(32))
_CLEARED = {"type": "AllBlocksCleared"}
_STORED: dict[str, Any] = {
    "type": "BlockStored",
    "block_hashes": [1, b"\x01" * 32],
    "parent_block_hash": None,
    "token_ids": _IDS,
    "block_size": 16,
    "medium": "GPU",
    "lora_id": None,
    "extra_keys": [["salt", ["image", 3]], None],
    "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
}
_CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi é 😀"}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}]},
    ],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "max_tokens": 5,
    "n": 2,
    "stream": True,
    "stream_options": {"include_usage": True},
    "cache_salt": "s",
    "user": "u",
}
SEEDS: dict[str, list[bytes]] = {
    "body": [
        orjson.dumps(_CHAT),
        b'{"model":"m","prompt":"a b c","max_tokens":-1,"n_predict":3,"best_of":2}',
        b'{"model":"m","prompt":[1,2,3]}',
        b'{"model":"m","prompt":[[1,2],[3]]}',
        b'{"model":"m","messages":[{"role":"user","content":[{"image_url":{"url":"https://good.example/a.png"}}]}]}',
    ],
    "template": [
        b"{% for m in messages %}<{{ m.role }}>{{ m['content'] | trim }}{% endfor %}{{ bos_token ~ 'x' * 3 }}",
        b"{% set n = namespace(x=[]) %}{% for i in range(9) %}{% set n.x = n.x + [i] %}{% endfor %}{{ n.x | join }}",
        b"{% macro m(a) %}{{ a.replace('a', 'b') }}{% endmacro %}{{ m('abc') }}{{ '%5d' % 3 }}{{ tools | tojson }}",
        b"{%- generation -%}{{ strftime_now('%Y') }}{%- endgeneration -%}{{ raise_exception('no') if x }}",
    ],
    "events": [
        b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\ndata: {"choices":[{"text":"a"}]}\n\n',
        b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\ndata: [DONE]\n\n',
        b'{"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}}',
        b'data: {"error":{"message":"busy","code":503}}\r\n\r\n',
        b'{"error":{"message":"no","code":400}}',
        b": waiting\n\nevent: error\ndata: x\n\n",
    ],
    "sse": [b"\xef\xbb\xbfdata: a\r\ndata: b\r\rid: 1\nevent: x\ndata\n\n: comment\n\nstray\n\nerror: {}\n\n"],
    "kv_events": [
        msgspec.msgpack.encode([1.5, [_STORED, {"type": "BlockRemoved", "block_hashes": [1]}, _CLEARED]]),
        msgspec.msgpack.encode([1.5, [["BlockStored", [1, 2], None, _IDS, 16, None, "CPU"], ["BlockRemoved", [2]]], 0]),
    ],
    "gguf": [_gguf_file()],
    "gguf_geometry": [_gguf_file()],
    "fleet": [
        b'[gateway]\nport = 8080\nbody_limit = "64MiB"\n[[replica]]\nurl = "http://x"\ncontext = "8Ki"\n[pools]\n',
        b'[[engine]]\ncontext = "8k"\n[[key]]\nname = "a"\nsha256 = "00"\n[[tenant]]\nname = "t"\nweight = 2.0\n',
    ],
    "quantities": [b"8Ki", b"1.5h", b"64MiB", b"1_000,000", b"200ms"],
    "headers": [b"7", b"Wed, 21 Oct 2026 07:28:00 GMT", b"Bearer sk-a", b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"],
    "decision_log": [
        b'{"longproof_decisions":1,"config":{},"routing":{}}\n',
        b'[1,5,"Ticked",{},[["Wait",{"id":"a","reason":"full"}]]]\n["follow",{"replica":"a","block_tokens":16}]\n',
    ],
    "journal": [b'["i",{"id":"a","number":1}]\n["s",{"id":"a"}]\n'],
    "metrics": [
        b'# HELP a b\n# TYPE a counter\na_total{x="1",y="a\\"b\\\\"} 3 1700000000\nb 1e9\nc NaN\nd{le="+Inf"} 4\n',
    ],
}
