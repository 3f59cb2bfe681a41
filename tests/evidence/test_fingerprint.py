"""Which configuration: facts define it, addresses do not, and what is not known cannot be the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from longproof.domain.measure import Unknown, given, reported
from longproof.evidence.fingerprint import differences, fingerprint
from longproof.testing.builders import build_deployment


def test_digest_is_the_same_when_facts_are() -> None:
    first, second = fingerprint(build_deployment()), fingerprint(build_deployment())
    assert first == second
    assert differences(first, second) == ()
    assert len(first.digest) == 64


def test_digest_is_the_same_when_only_provenance_or_reason_differs() -> None:
    told = build_deployment(kv_dtype=reported("f16", "GET /props"), layout=Unknown(reason="not told"))
    known = build_deployment(kv_dtype=given("f16", "--kv-type"), layout=Unknown(reason="never asked"))
    assert fingerprint(told) == fingerprint(known)


@pytest.mark.parametrize("name", ["port", "host", "base_url"])
def test_digest_is_the_same_when_only_the_address_differs(name: str) -> None:
    here = build_deployment(other={name: reported("8000", "flags"), "flash_attn": reported("on", "flags")})
    there = build_deployment(other={name: reported("9000", "flags"), "flash_attn": reported("on", "flags")})
    assert fingerprint(here) == fingerprint(there)
    assert "other.flash_attn" in fingerprint(here).facts


def test_model_file_counts_by_name_when_directories_differ() -> None:
    here = fingerprint(build_deployment(model_file=reported("/home/me/models/a.gguf", "x")))
    assert here == fingerprint(build_deployment(model_file=reported("/srv/a.gguf", "x")))
    assert here.facts["model_file"] == "a.gguf"
    assert here != fingerprint(build_deployment(model_file=reported("/srv/b.gguf", "x")))


def test_differences_name_field_claimed_and_actual_when_configurations_differ() -> None:
    claimed = build_deployment(limit_tokens=8192, kv_dtype=reported("f16", "x"))
    actual = replace(build_deployment(limit_tokens=4096, block_size_tokens=reported(16, "x")))
    assert differences(fingerprint(claimed), fingerprint(actual)) == (
        ("block_size_tokens", "unknown", "16"),
        ("configured_limit_tokens", "8192", "4096"),
        ("kv_dtype", "f16", "unknown"),
        ("slot_limit_tokens", "8192", "4096"),
    )
    assert fingerprint(claimed).digest != fingerprint(actual).digest
