"""Options about effective context: what is asked, at which lengths, and how many answers it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from longproof.cli.options import Command, LengthsType

if TYPE_CHECKING:
    from longproof.prove.options import QualityOptions


def quality_options(command: Command) -> Command:
    """What is asked to see how well the window is used."""
    for decorate in reversed(
        (
            click.option(
                "--families",
                metavar="NAMES",
                help="Task families, with commas, or all; default: literal,multi-key-8,absent,code-definition.",
            ),
            click.option(
                "--quality-lengths",
                type=LengthsType(),
                help="Prompt lengths of the questions; default: the longest and a quarter of it, down to 512.",
            ),
            click.option("--answers", type=int, help="Answers at each length; default: 8, with --certify 60."),
            click.option(
                "--certify",
                is_flag=True,
                help="Ask until each length is decided, the shortest first; a curve otherwise.",
            ),
            click.option(
                "--threshold",
                type=float,
                default=0.85,
                show_default=True,
                help="Share of right answers that a length must keep.",
            ),
            click.option(
                "--retention", is_flag=True, help="Relative to the model's own answers without filler, not absolute."
            ),
            click.option("--corpus", metavar="NAME_OR_DIR", help="Filler and documents; default: generated prose."),
            click.option("--code-corpus", metavar="NAME_OR_DIR", help="Source code; default: Python's own library."),
            click.option(
                "--thinking-tokens", type=int, default=0, help="Allowed on top of the answer, for models that think."
            ),
            click.option("--together", type=int, default=1, show_default=True, help="Questions asked at a time."),
        )
    ):
        command = decorate(command)
    return command


def quality_options_from(choices: dict[str, Any]) -> QualityOptions:
    """The command line's words as `QualityOptions`."""
    from longproof.prove.options import QualityOptions

    families = choices["families"]
    return QualityOptions(
        families=tuple(part.strip() for part in families.split(",")) if families else None,
        lengths=choices["quality_lengths"],
        answers=choices["answers"],
        certify=choices["certify"],
        threshold=choices["threshold"],
        retention=choices["retention"],
        corpus=choices["corpus"],
        code_corpus=choices["code_corpus"],
        thinking_tokens=choices["thinking_tokens"],
        together=choices["together"],
    )
