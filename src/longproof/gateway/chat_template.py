"""What a model's chat template makes of messages.

The environment is the one that Hugging Face models are written for (transformers 5, `utils/chat_template_utils.py`):
a sandbox with loop controls, trimmed blocks, ``tojson`` that leaves characters as they are, ``raise_exception``,
``strftime_now`` and a ``generation`` block that prints what is in it. Messages are normalised as vLLM 0.32 does it
(`entrypoints/chat_utils.py`): a template that walks through a message's parts gets parts, any other one gets their
texts joined by line feeds; arguments of tool calls are given as objects.

What is not text has no place here: whoever counts it is the engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from longproof.errors import ModelFileError
from longproof.gateway.ask import Json
from longproof.gateway.template_limits import Budget, LimitedEnvironment, render

_KEPT = ("name", "tool_call_id", "reasoning", "reasoning_content")
_WIDEST_INDENT, _LONGEST_DATE = 32, 128
_GIVEN = ("messages", "tools", "documents")
_NOT_OURS = ("chat_template", "documents", "mm_processor_kwargs")
"""Fields that change a prompt in ways that only the engine knows."""


class Uncountable(Exception):  # noqa: N818 - named for what is the case
    """This request's tokens are not ours to count; the message says why."""


class ChatTemplate:
    """One compiled template. `special` are the model's named special tokens (``bos_token`` and so on). Thread-safe.

    Raises ModelFileError for a template that does not compile.
    """

    def __init__(self, source: str, special: Mapping[str, str], budget: Callable[[], Budget] = Budget) -> None:
        environment = _environment()
        try:
            tree = environment.parse(source)
            self.takes_parts = _walks_through_content(tree)
            self._template: Template = environment.from_string(environment.limited(tree))
        except Exception as problem:  # a template is a program: compiling one can go wrong in many ways
            raise ModelFileError(
                f"the chat template does not compile: {problem}", advice="give the model's own files, unchanged"
            ) from problem
        self._special, self._budget = dict(special), budget
        self._ours = frozenset((*special, *_GIVEN, *cast("Any", environment).globals))
        """Names that a client must not give a meaning: it would be counted otherwise than the engine renders it."""

    def render(self, fields: Json) -> str:
        """The prompt of a chat completion's body, generation prompt included unless the body says otherwise.

        Raises Uncountable: the template refuses these messages, or they hold something else than text.
        """
        for name in _NOT_OURS:
            if fields.get(name):
                raise Uncountable(f"'{name}' is the engine's own business")
        messages = cast("list[Json]", fields.get("messages") or [])
        values: dict[str, Any] = {
            "messages": [self._message(message) for message in messages],
            "tools": fields.get("tools") or None,
            "add_generation_prompt": fields.get("add_generation_prompt", True),
        }
        if fields.get("continue_final_message"):
            raise Uncountable("'continue_final_message' cuts the prompt behind the template")
        extra = fields.get("chat_template_kwargs")
        if isinstance(extra, dict):
            given = cast("dict[str, Any]", extra)
            if not self._ours.isdisjoint(given):
                raise Uncountable("'chat_template_kwargs' names what the template is given anyway")
            values.update(given)
        try:
            return render(self._template, {**self._special, **values}, self._budget())
        except Exception as problem:  # a template is a program: it raises what it likes
            raise Uncountable(f"the template refuses it: {type(problem).__name__}: {problem}") from problem

    def _message(self, message: Json) -> Json:
        found: Json = {"role": message.get("role"), "content": self._content(message.get("content"))}
        found.update((name, message[name]) for name in _KEPT if message.get(name) is not None)
        calls = message.get("tool_calls")
        if isinstance(calls, list) and calls:
            found["tool_calls"] = [_call(call) for call in cast("list[object]", calls)]
        return found

    def _content(self, content: object) -> object:
        if isinstance(content, str):
            return [{"type": "text", "text": content}] if self.takes_parts else content
        if content is None:
            return [] if self.takes_parts else ""
        texts = [_text(part) for part in cast("Sequence[object]", content)] if isinstance(content, list) else None
        if texts is None:
            raise Uncountable("a message's content is neither text nor a list")
        return [{"type": "text", "text": text} for text in texts] if self.takes_parts else "\n".join(texts)


def _text(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        found = cast(Json, part)
        if found.get("type") == "text" and isinstance(found.get("text"), str):
            return str(found["text"])
    raise Uncountable("a message holds something else than text")


def _call(call: object) -> object:
    if not isinstance(call, dict):
        raise Uncountable("a tool call is no object")
    found = dict(cast(Json, call))
    function = found.get("function")
    if isinstance(function, dict):
        inside = dict(cast(Json, function))
        arguments = inside.get("arguments")
        if isinstance(arguments, str):
            try:
                inside["arguments"] = json.loads(arguments) if arguments else {}
            except (ValueError, RecursionError) as problem:
                raise Uncountable("a tool call's arguments are no JSON") from problem
        found["function"] = inside
    return found


def _environment() -> LimitedEnvironment:
    environment = LimitedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    untyped = cast("Any", environment)  # jinja2 types its filters and globals loosely
    untyped.filters["tojson"] = _tojson
    untyped.globals.update(raise_exception=_refuse, strftime_now=_strftime_now)
    return environment


class _Generation(Extension):
    """``{% generation %}…{% endgeneration %}`` marks what an assistant said, for training; here it is printed."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """The block's body, as if the tags were not there."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if indent is not None and not 0 <= indent <= _WIDEST_INDENT:
        raise TemplateError(f"an indent of {indent}")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    if len(form) > _LONGEST_DATE or re.search(r"%[^a-zA-Z]*\d", form):  # "%1000000000d" is a gigabyte
        raise TemplateError("a date of a length that cannot be meant")
    return datetime.now().strftime(form)  # noqa: DTZ005 - templates mean the server's own local date


def _walks_through_content(tree: nodes.Template) -> bool:
    """Whether some loop goes through ``message.content`` (or a variable that was set to it)."""
    names = {
        target.name
        for assign in tree.find_all(nodes.Assign)
        if isinstance(target := assign.target, nodes.Name) and _is_content(assign.node, frozenset())
    }
    return any(_is_content(loop.iter, frozenset(names)) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node, names: frozenset[str]) -> bool:
    while isinstance(node, nodes.Filter) and node.node is not None:
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in names
