"""Options that several commands share, and the types behind them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from longproof.errors import UsageError

if TYPE_CHECKING:
    from longproof.prove.target import Target, UrlTarget

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator: TypeAlias = Callable[[Command], Command]

DEFAULT_EVIDENCE = "longproof-evidence"


class TokensType(click.ParamType[int]):
    """A number of tokens: 8192, 8k, 8Ki, 1M."""

    name = "tokens"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from longproof.domain.units import parse_tokens

        return value if isinstance(value, int) else parse_tokens(str(value))


class LengthsType(click.ParamType[tuple[int, ...]]):
    """Token counts with commas between them: 512,4k,32k."""

    name = "lengths"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        from longproof.domain.units import parse_tokens

        if isinstance(value, tuple):
            return value  # pyright: ignore[reportUnknownVariableType] - click hands a converted default back
        return tuple(sorted({parse_tokens(part) for part in str(value).split(",")}))


class BudgetType(click.ParamType[tuple[int | None, int | None]]):
    """A time, a number of tokens, or both: 10m, 500ktok, 10m,500ktok → (ns or None, tokens or None)."""

    name = "budget"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, int | None]:
        from longproof.domain.units import parse_duration_ns, parse_tokens

        if isinstance(value, tuple):
            return value  # pyright: ignore[reportUnknownVariableType] - click hands a converted default back
        ns: int | None = None
        tokens: int | None = None
        for part in str(value).split(","):
            word = part.strip()
            lowered = word.lower()
            if lowered.endswith(("tok", "tokens")):
                tokens = parse_tokens(lowered.removesuffix("tokens").removesuffix("tok"))
            else:
                try:
                    ns = parse_duration_ns(word)
                except UsageError:
                    raise UsageError(
                        f"'{word}' is neither a time nor a number of tokens",
                        advice="write --budget 10m, --budget 500ktok or --budget 10m,500ktok",
                    ) from None
        return ns, tokens


def json_option(command: Command) -> Command:
    """``--json``: the result as JSON on stdout."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")(command)


def connection_options(command: Command) -> Command:
    """What it takes to reach a server."""
    for decorate in reversed(
        (
            click.option("--model", metavar="NAME", help="Served model name, where the server serves several."),
            click.option(
                "--api-key-env",
                metavar="VARIABLE",
                help="Environment variable that holds the API key; the key itself never stands in evidence.",
            ),
            click.option(
                "--tokenizer",
                type=click.Path(exists=True, dir_okay=False),
                help="tokenizer.json to count with, for servers that do not count themselves.",
            ),
            click.option(
                "--engine-log",
                type=click.Path(dir_okay=False),
                help="Start-up log of a vLLM: adds what its API does not tell.",
            ),
        )
    ):
        command = decorate(command)
    return command


def proof_options(command: Command) -> Command:
    """What is proved, and at what cost."""
    for decorate in reversed(
        (
            click.option(
                "--context",
                "context_tokens",
                type=TokensType(),
                help="Window to prove; default: the server's whole limit.",
            ),
            click.option(
                "--lengths",
                type=LengthsType(),
                help="Prompt lengths for speed and warmth, e.g. 512,4k,32k; default: powers of two up to the window.",
            ),
            click.option("--repeats", type=int, default=3, show_default=True, help="Repeats of every cell."),
            click.option(
                "--only", metavar="PROBES", help="Only these probes, with commas, e.g. accounting,boundary,busy."
            ),
            click.option(
                "--budget", type=BudgetType(), help="Stop before this is exceeded: 10m, 500ktok, or 10m,500ktok."
            ),
            click.option(
                "--output-tokens", type=int, default=16, show_default=True, help="Output tokens asked of every request."
            ),
            click.option(
                "--timeout",
                "timeout",
                metavar="TIME",
                help="A request without an end by then counts as hung, e.g. 90s.",
            ),
            click.option(
                "--resolution",
                type=TokensType(),
                help="How near the boundary is searched; default: 1 token up to 16Ki.",
            ),
            click.option(
                "--route",
                type=click.Choice(["chat", "completions"]),
                help="OpenAI route to prove; default: chat where the server has it.",
            ),
            click.option(
                "--out", type=click.Path(file_okay=False), help="Evidence directory; default: a new numbered one."
            ),
            click.option("--seed", type=int, default=0, show_default=True, help="Seed of every random choice."),
        )
    ):
        command = decorate(command)
    return command


def api_key(variable: str | None) -> str | None:
    """The key in an environment variable. UsageError when the variable is named but empty."""
    if variable is None:
        return None
    key = os.environ.get(variable, "")
    if not key:
        raise UsageError(
            f"--api-key-env names {variable}, which is not set",
            advice=f"export {variable}=… first, or leave the option out",
        )
    return key


def url_target(url: str, choices: dict[str, Any]) -> UrlTarget:
    """The server at a URL, as the connection options say."""
    from longproof.prove.target import UrlTarget

    return UrlTarget(
        url=url,
        model=choices["model"],
        api_key=api_key(choices["api_key_env"]),
        tokenizer=choices["tokenizer"],
        engine_log=choices["engine_log"],
    )


def any_target(url: str | None, prefill: str | None, decode: str | None, choices: dict[str, Any]) -> Target:
    """One server, or a pair that hands KV on. UsageError for neither, for both, and for half a pair."""
    from longproof.prove.target import PdTarget

    if url is not None and prefill is None and decode is None:
        return url_target(url, choices)
    if url is None and prefill is not None and decode is not None:
        return PdTarget(
            prefill_url=prefill,
            decode_url=decode,
            model=choices["model"],
            api_key=api_key(choices["api_key_env"]),
            tokenizer=choices["tokenizer"],
        )
    raise UsageError(
        "one server is named by its URL, a pair by --prefill and --decode together",
        advice="write 'longproof prove URL', or 'longproof prove --prefill URL --decode URL'",
    )
