"""What people type for an address, and what it becomes."""

from __future__ import annotations

import pytest

from longproof.engines.address import base_url, is_loopback
from longproof.engines.link import Link
from longproof.errors import UsageError


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1/chat/completions", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1/completions", "http://127.0.0.1:8000"),
        ("https://api.example.org/openai/v1/models", "https://api.example.org/openai"),
        ("https://api.example.org", "https://api.example.org"),
        ("  HTTP://Example.ORG:80/  ", "http://example.org:80"),
        ("localhost:8000", "http://localhost:8000"),
        ("localhost", "http://localhost"),
        ("127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("10.0.0.5:8000", "http://10.0.0.5:8000"),
        ("gpu-box:8000", "http://gpu-box:8000"),
        ("[::1]:8000", "http://[::1]:8000"),
        ("http://[2001:db8::1]:8000/v1", "http://[2001:db8::1]:8000"),
    ],
)
def test_address_becomes_one_base_url_when_it_can_be_meant(typed: str, url: str) -> None:
    assert base_url(typed) == url


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("", "no http://"),
        ("nonsense", "no http://"),
        ("api.example.org/v1", "no http://"),
        ("ws://example.org", "neither http nor https"),
        ("http://", "names no host"),
        ("http://exa mple.org", "names no host"),
        ("http://example.org:99999", "port"),
        ("http://example.org:port", "port"),
        ("example.org:99999", "port"),
        ("http://example.org/v1?key=abc", "query"),
        ("http://example.org/#top", "fragment"),
        ("http://[::1", "not a URL"),
    ],
)
def test_usage_error_says_how_to_write_it_when_it_cannot_be_meant(typed: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        base_url(typed)
    assert words in refused.value.problem
    assert "http" in refused.value.advice


def test_usage_error_keeps_the_password_out_of_its_words_when_the_url_has_one() -> None:
    with pytest.raises(UsageError) as refused:
        base_url("http://user:hunter2@example.org")
    assert "hunter2" not in str(refused.value) + refused.value.advice
    assert "--api-key-env" in refused.value.advice


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://127.3.2.1", "http://localhost", "http://[::1]:1"])
def test_address_is_loopback_when_it_names_this_machine(url: str) -> None:
    assert is_loopback(url)


@pytest.mark.parametrize("url", ["http://10.0.0.5", "http://example.org", "http://localhost.example.org"])
def test_address_is_not_loopback_when_it_names_another(url: str) -> None:
    assert not is_loopback(url)


def test_link_refuses_a_key_that_no_header_can_carry() -> None:
    with pytest.raises(UsageError, match="characters"):
        Link("http://localhost:1", api_key="abc\ndef")


@pytest.mark.parametrize("host", ["a..example.org", "a" * 64 + ".org"])
def test_link_refuses_a_host_that_no_dns_name_can_be(host: str) -> None:
    with pytest.raises(UsageError, match="not a host name"):
        Link(f"http://{host}:80")
