"""Chat templates as models bring them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from longproof.errors import ModelFileError
from longproof.gateway.chat_template import ChatTemplate, Uncountable

PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<go>{% endif %}"
)
PARTS = "{% for m in messages %}{% for p in m['content'] %}[{{ p.text }}]{% endfor %}{% endfor %}"
PARTS_BY_NAME = (
    "{% for m in messages %}{% set c = m.content %}{% if c is string %}{{ c }}{% else %}"
    "{% for p in c %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}"
)


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **more}


def test_text_is_put_in_when_a_template_takes_text() -> None:
    assert ChatTemplate(PLAIN, {}).render(user("Hi")) == "<user>Hi<go>"
    assert ChatTemplate(PLAIN, {}).render(user("Hi", add_generation_prompt=False)) == "<user>Hi"
    assert ChatTemplate(PLAIN, {}).render(user(None)) == "<user><go>"


def test_parts_are_joined_when_a_template_takes_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, "c"]
    assert ChatTemplate(PLAIN, {}).render(user(parts)) == "<user>a\nb\nc<go>"


@pytest.mark.parametrize("source", [PARTS, PARTS_BY_NAME])
def test_parts_are_handed_on_when_a_template_walks_through_them(source: str) -> None:
    template = ChatTemplate(source, {})
    assert template.takes_parts
    assert template.render(user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])) == "[a][b]"
    assert template.render(user("a")) == "[a]"


@pytest.mark.parametrize(
    "fields",
    [
        user([{"type": "image_url", "image_url": {"url": "x"}}]),
        user(7),
        user("a", chat_template="{{ messages }}"),
        user("a", documents=[{"text": "x"}]),
        user("a", continue_final_message=True),
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{no json"}}]}]},
        {"messages": [{"role": "assistant", "tool_calls": ["x"]}]},
    ],
)
def test_it_is_the_engines_business_when_more_than_text_decides(fields: dict[str, Any]) -> None:
    with pytest.raises(Uncountable):
        ChatTemplate(PLAIN, {}).render(fields)


def test_a_refusal_of_the_template_is_told_when_it_raises() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(Uncountable, match="roles must alternate"):
        template.render(user("a"))


def test_nothing_of_the_process_is_reached_when_a_template_tries() -> None:
    template = ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}", {})
    with pytest.raises(Uncountable):
        template.render(user("a"))


def test_arguments_of_tool_calls_are_objects_when_the_template_sees_them() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.tool_calls[0].function.arguments.lake }}{% endfor %}", {})
    call = {"id": "1", "type": "function", "function": {"name": "depth", "arguments": '{"lake": "Como"}'}}
    assert template.render({"messages": [{"role": "assistant", "tool_calls": [call]}]}) == "Como"


def test_tools_and_extra_variables_are_there_when_the_body_brings_them() -> None:
    template = ChatTemplate("{{ tools | tojson }}|{{ enable_thinking }}|{{ bos_token }}", {"bos_token": "<s>"})
    fields = user("a", tools=[{"name": "é", "n": 1}], chat_template_kwargs={"enable_thinking": False})
    assert template.render(fields) == '[{"name": "é", "n": 1}]|False|<s>'


def test_what_models_use_is_there_when_they_are_rendered() -> None:
    source = (
        "{%- for m in messages %}\n    {%- if m.role == 'skip' %}{% continue %}{% endif %}\n"
        "    {% generation %}{{ m.content | trim }}{% endgeneration %}\n{% endfor %}{{ strftime_now('%Y') }}"
    )
    fields = {"messages": [{"role": "skip", "content": "x"}, {"role": "user", "content": " a "}]}
    found = ChatTemplate(source, {}).render(fields)
    assert found.startswith("a")
    assert found.endswith(str(datetime.now().year))  # noqa: DTZ005 - the template's own date


def test_a_template_is_refused_when_it_does_not_compile() -> None:
    with pytest.raises(ModelFileError, match="does not compile"):
        ChatTemplate("{% if %}", {})
