"""A model's chat template is a stranger's program: what it may not do, and that ordinary ones notice nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longproof.errors import ModelFileError
from longproof.gateway.chat_template import ChatTemplate, Uncountable
from longproof.gateway.template_limits import Budget

BOMBS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "macros that call themselves twice": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}"
    "{{ m(60) }}",
    "doubled by +": "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "doubled by ~": "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubled in a block": "{% set ns = namespace(x='ab') %}{% for i in range(60) %}"
    "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
    "a list doubled": "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "a text repeated": "{{ 'a' * 10000000000 }}",
    "a repeated list": "{{ ([0] * 10000000000) | length }}",
    "a tower of powers": "{{ 9 ** 999999999 }}",
    "squares": "{% set ns = namespace(x=9) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "a wide format": "{{ '%2000000000d' % 1 }}",
    "a wide format filter": "{{ '%2000000000d' | format(1) }}",
    "a wide str.format": "{{ '{:>2000000000}'.format(1) }}",
    "a width within a str.format": "{{ '{:{}}'.format('a', '2000000000') }}",
    "ljust": "{{ 'a'.ljust(2000000000) }}",
    "zfill": "{{ 'a'.zfill(2000000000) }}",
    "centre": "{{ 'a' | center(2000000000) }}",
    "indent": "{{ 'a\\nb' | indent(2000000000) }}",
    "tojson indent": "{{ [[1]] | tojson(indent=2000000000) }}",
    "a replaced text": "{% set x = 'a' * 90000 %}{{ x.replace('a', x) }}",
    "a replace filter": "{% set x = 'a' * 90000 %}{{ x | replace('a', x) }}",
    "a join": "{% set x = 'a' * 90000 %}{{ x.join(range(90000) | map('string') | list) }}",
    "a join filter": "{% set x = 'a' * 90000 %}{{ range(90000) | join(x) }}",
    "a date": "{{ strftime_now('%2000000000Y') }}",
    "long text in a loop": "{% for i in range(99999) %}" + "x" * 10_000 + "{% endfor %}",
    "the same list again and again": "{% for i in range(99999) %}{{ range(99999) | list | length }}{% endfor %}",
}


def messages(*texts: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text} for text in texts]}


@pytest.mark.parametrize("name", BOMBS)
def test_the_engine_counts_when_a_template_would_take_time_or_memory_without_bound(name: str) -> None:
    try:
        template = ChatTemplate(BOMBS[name], {}, budget=lambda: Budget(steps=20_000, chars=1 << 20))
    except ModelFileError:
        return  # it is folded when it is compiled, and refused there
    with pytest.raises(Uncountable):
        template.render(messages("Hi"))


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in x recursive %}{{ loop(range(9)) }}{% endfor %}",
        "(" * 5_000,
        "{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}",
        "".join("{% for a in x %}" for _ in range(64)) + "{% endfor %}" * 64,
        "{% if " + "not " * 50_000 + "x %}{% endif %}",
        "{{ 'a' | urlize }}",
    ],
)
def test_a_model_file_is_refused_when_its_template_cannot_be_bounded_or_compiled(source: str) -> None:
    try:
        template = ChatTemplate(source, {})
    except ModelFileError:
        return
    with suppress(Uncountable):
        template.render(messages("Hi"))


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ (messages | attr('__class__')).__base__ }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{% import 'os' as os %}",
        "{% include '/etc/hostname' %}",
        "{{ messages | map(attribute='__class__') | list }}",
    ],
)
def test_nothing_beyond_the_prompt_is_reached_or_changed_when_a_template_tries(source: str) -> None:
    body = messages("Hi")
    try:
        shown = ChatTemplate(source, {}).render(body)
    except (Uncountable, ModelFileError):
        shown = ""
    assert "class" not in shown
    assert "localhost" not in shown
    assert body == messages("Hi")


@pytest.mark.parametrize("name", ["messages", "tools", "bos_token", "raise_exception", "namespace"])
def test_a_client_cannot_have_itself_counted_short_when_its_kwargs_name_what_the_template_is_given(name: str) -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {"bos_token": "<s>"})
    with pytest.raises(Uncountable):
        template.render({**messages("a long text"), "chat_template_kwargs": {name: []}})
    assert template.render({**messages("a"), "chat_template_kwargs": {"enable_thinking": True}}) == "a"


@given(text=st.text() | st.sampled_from(["{{ 7*7 }}", "{% for a in range(9) %}", "{{ messages }}", "{#", "%}"]))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_message_is_text_and_never_template_whatever_it_holds(text: str) -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {})
    assert template.render(messages(text)) == text


def test_an_ordinary_template_notices_nothing_when_a_conversation_is_long() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% if loop.first and m.role == 'system' %}S{% endif %}{{ '<' ~ m.role ~ '>' + m.content"
        " | trim }}{{ loop.length if loop.last }}{% endfor %}{% set a, b = '%s-%d' % ('x', 3), [1, 2] + [3] %}"
        "{{ a }}{{ b | join(', ') }}{{ 'ab'.replace('a', 'c') }}{{ '-' * 3 }}{{ 'x' | indent(2, true) }}",
        {},
    )
    shown = template.render(messages(*["a word or two "] * 2_000))
    assert shown.startswith("<user>a word or two<user>")
    assert shown.endswith("<user>a word or two2000x-31, 2, 3cb---  x")
    # a text of 4 MiB passes through what rewrites it, since the result is as long
    rewriting = ChatTemplate("{{ messages[0].content.replace('a', 'bb') | trim }}", {})
    assert len(rewriting.render(messages("a" * 4_000_000))) == 8_000_000


def test_the_processors_time_is_bounded_when_steps_are_slow() -> None:
    slow = "{% for i in range(9999) %}{{ 'b' in messages[0].content }}{% endfor %}"
    template = ChatTemplate(slow, {}, budget=lambda: Budget(until_s=0.0))
    with pytest.raises(Uncountable, match="processor time"):
        template.render(messages("a"))
