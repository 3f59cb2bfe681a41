"""What a chat template may take: a model's file is somebody else's program, and a sandbox alone bounds neither time nor
memory.

    every loop turn, call, filter ──▶ steps     ─┐
    every piece of output, long constants ─▶ chars ─┼─▶ over the budget ─▶ Spent: the engine counts instead
    thread's own processor time ─────────────────┘
    ``*`` ``**`` ``%`` ``+`` ``~``, widths, replace, join: refused before they are carried out when the result is huge

Templates that stay below see nothing of it. The engine renders the same template, usually without such bounds.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from jinja2 import Environment, TemplateError, nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_STEPS = 2_000_000
MOST_CHARS = 1 << 27
MOST_SECONDS = 5.0
_WIDEST = 100_000
_MOST_ITEMS = 1 << 20
_SMALL_CHARS = 4_096
_MOST_BITS = 4_096
_LOOK_EVERY_STEPS = 1_024
_STEPS = "longproof_steps"
_UNBOUNDED_FILTERS = ("urlize", "wordwrap", "xmlattr")
_WIDE_FORMAT = re.compile(r"\d{5,}|\*|\{[^{}]*\{")


class Spent(TemplateError):  # noqa: N818 - named for what happened
    """The template wants more than it may take; the message says of what."""


@dataclass(slots=True)
class Budget:
    """Of one rendering."""

    steps: int = MOST_STEPS
    chars: int = MOST_CHARS
    until_s: float = field(default_factory=lambda: time.thread_time() + MOST_SECONDS)
    _looked: int = 0

    def step(self, steps: int = 1) -> None:
        """So many steps more."""
        self.steps -= steps
        if self.steps < 0:
            raise Spent("too many loops and calls")
        self._looked += 1
        if self._looked % _LOOK_EVERY_STEPS == 0 and time.thread_time() > self.until_s:
            raise Spent(f"more than {MOST_SECONDS:g} s of processor time")

    def write(self, chars: int) -> None:
        """So many characters more."""
        self.chars -= chars
        if self.chars < 0:
            raise Spent("too many characters")


class _Active(threading.local):
    budget: Budget | None = None


_active = _Active()


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """jinja2's immutable sandbox, whose templates are rendered by `render` within a `Budget`."""

    intercepted_binops = frozenset(("*", "**", "%", "+"))

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=_finalize, **options)
        loose = cast("Any", self)  # jinja2 types its filters and globals loosely
        for name in _UNBOUNDED_FILTERS:
            del loose.filters[name]
        loose.filters = {name: _limited(name, found) for name, found in loose.filters.items()}
        loose.filters[_STEPS] = _counted
        del loose.globals["lipsum"]

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """A binary operation, when its result is of a size that can be meant."""
        if operator == "+" and type(left) is type(right) is str and len(left) + len(right) <= _SMALL_CHARS:
            return left + right  # most of what templates do; the loop or call around it is counted
        _step()
        if operator == "**":
            _require(_bits(left) * _bits_of_power(right) <= _MOST_BITS, "a power")
        elif operator == "%" and isinstance(left, str):
            _require_narrow(left)
        elif operator == "*":
            _require_product(left, right)
        elif operator == "+" and _sized(left) and _sized(right):
            most = _room_chars() if isinstance(left, str) else _MOST_ITEMS
            _require(len(left) + len(right) <= most, "a sum")
            _step((len(left) + len(right)) >> 12)
        return super().call_binop(context, operator, left, right)

    def call(self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """A call, charged by what it works on."""
        owner = getattr(__obj, "__self__", None)
        _require_args(args, kwargs)
        if isinstance(owner, str):
            _charge(owner)
            _require_text_method(owner, str(getattr(__obj, "__name__", "")), args)
        formatted = getattr(getattr(__obj, "__wrapped__", None), "__self__", None)
        if isinstance(formatted, str):  # str.format, as jinja2's sandbox wraps it
            _require_narrow(formatted)
        _step()
        found = super().call(__context, __obj, *args, **kwargs)
        _charge(found)
        return found

    def limited(self, tree: nodes.Template) -> nodes.Template:
        """A parsed template whose loops are counted and whose ``~`` is a sum. TemplateError for recursive loops."""
        for loop in tree.find_all(nodes.For):
            if loop.recursive:
                raise TemplateError("recursive loops have no bound")
            text = sum(len(data.data) for data in loop.find_all(nodes.TemplateData))
            weight = nodes.Const(text, lineno=loop.lineno)
            loop.iter = nodes.Filter(loop.iter, _STEPS, [weight], [], None, None, lineno=loop.lineno)
        _replace_concats(tree)
        tree.set_environment(self)
        return tree


def render(template: Any, values: dict[str, Any], budget: Budget) -> str:
    """The text. Spent, and whatever the template raises."""
    _active.budget = budget
    try:
        parts = list[str]()
        for part in cast("Iterable[str]", template.generate(values)):
            budget.write(len(part))
            parts.append(part)
        return "".join(parts)
    finally:
        _active.budget = None


def _step(steps: int = 1) -> None:
    if _active.budget is not None:
        _active.budget.step(steps)


def _room_chars() -> int:
    return MOST_CHARS if _active.budget is None else _active.budget.chars


def _require(fits: bool, what: str) -> None:
    if not fits:
        raise Spent(f"{what} of a size that cannot be meant")


def _finalize(value: Any) -> Any:
    if _active.budget is not None and isinstance(value, str):
        _active.budget.write(len(value))
    return value


@pass_context
def _counted(_: Context, found: Iterable[Any], text: int) -> Iterator[Any]:
    budget = _active.budget
    for item in found:
        if budget is not None:
            budget.step()
            budget.write(text)
        yield item


def _limited(name: str, found: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(found)  # its attributes tell jinja2 what else it is given
    def limited(*args: Any, **kwargs: Any) -> Any:
        given = [arg for arg in args if not isinstance(arg, Context | nodes.EvalContext | Environment)]
        _require_args(given[1:], kwargs)
        _step()
        for arg in given:
            _charge(arg)
        if name == "format" and given:
            _require_narrow(str(given[0]))
        elif name == "replace" and len(given) > 2:
            _require_text_method(str(given[0]), name, tuple(given[1:]))
        elif name in ("indent", "join"):
            longest = max((len(arg) for arg in (*given[1:], *kwargs.values()) if isinstance(arg, str)), default=0)
            _require((len(given[0]) if _sized(given[0]) else _WIDEST) * longest <= _room_chars(), f"a wide {name}")
        return found(*args, **kwargs)

    return limited


def _charge(value: Any) -> None:
    if isinstance(value, str):
        _step(len(value) >> 12)
    elif _sized(value):
        _step(len(value) >> 3)


def _sized(value: Any) -> bool:
    return isinstance(value, str | list | tuple | dict | range | bytes)


def _require_args(args: Iterable[Any], kwargs: dict[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int) and abs(value) > _WIDEST and not isinstance(value, bool):
            raise Spent(f"a width or count of more than {_WIDEST:,}")


def _require_text_method(text: str, name: str, args: tuple[Any, ...]) -> None:
    if name == "replace" and len(args) > 1:
        _require(text.count(str(args[0])) * len(str(args[1])) <= _room_chars(), "a replacement")
    elif name == "join" and args and _sized(args[0]):
        _require(len(args[0]) * max(1, len(text)) <= _room_chars(), "a join")
    elif name == "expandtabs":
        _require(text.count("\t") * (args[0] if args and isinstance(args[0], int) else 8) <= _room_chars(), "tabs")


def _require_narrow(form: str) -> None:
    _require(_WIDE_FORMAT.search(form) is None, "a format")


def _require_product(left: Any, right: Any) -> None:
    for one, other in ((left, right), (right, left)):
        if _sized(one) and isinstance(other, int):
            _require(len(one) * other <= (_room_chars() if isinstance(one, str) else _MOST_ITEMS), "a repetition")
            _step(len(one) * max(0, other) >> 12)
    if isinstance(left, int) and isinstance(right, int):
        _require(left.bit_length() + right.bit_length() <= _MOST_BITS, "a product")


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0


def _bits_of_power(value: Any) -> int:
    return abs(value) if isinstance(value, int) else 0


def _replace_concats(node: nodes.Node) -> None:
    """``a ~ b`` becomes ``a|string + b|string``, which is counted."""
    for name, value in list(node.iter_fields()):
        if isinstance(value, nodes.Node):
            _replace_concats(value)
            if isinstance(value, nodes.Concat):
                setattr(node, name, _sum(value))
        elif isinstance(value, list):
            for place, item in enumerate(cast("list[Any]", value)):
                if isinstance(item, nodes.Node):
                    _replace_concats(item)
                    if isinstance(item, nodes.Concat):
                        value[place] = _sum(item)


def _sum(concat: nodes.Concat) -> nodes.Expr:
    texts: list[nodes.Expr] = [
        nodes.Filter(part, "string", [], [], None, None, lineno=concat.lineno) for part in concat.nodes
    ]
    found, *rest = texts
    for text in rest:
        found = nodes.Add(found, text, lineno=concat.lineno)
    return found
