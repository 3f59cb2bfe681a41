"""The report as one HTML file that needs nothing but itself: no request leaves the page, whatever a server wrote
into it.

    claim + evidence ─▶ page.build ─▶ templates/ (autoescape) ─▶ report.html

The page's own policy (Content-Security-Policy) forbids every load and every script but the one it carries, which is
named by hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from longproof.claim.derive import claim_of, load_view
from longproof.claim.statements import Claim, Standing
from longproof.claim.view import EvidenceView
from longproof.domain.outcome import Outcome
from longproof.evidence.disk import not_writable, write_whole
from longproof.report import page
from longproof.report.drawings import css
from longproof.report.figures import Figure
from longproof.report.lengths import ARMS
from longproof.report.numbers import plural, sample_size, spread_text, tokens, value_text
from longproof.report.outcomes import kind, look, word
from longproof.report.requests import describe_edge
from longproof.report.theme import css_variables
from longproof.report.untrusted import shortened, visible

REPORT_NAME = "report.html"
_CONTENTS = (
    ("numbers", "The numbers"),
    ("findings", "Findings"),
    ("speed", "Speed"),
    ("warmth", "Cold and warm"),
    ("edge", "The edge"),
    ("search", "The search"),
    ("accounting", "Tokens"),
    ("requests", "Requests"),
    ("not-shown", "Not shown"),
    ("conditions", "Conditions"),
    ("reproduce", "Check it"),
    ("statements", "Statements"),
    ("evidence", "Evidence"),
)
"""Anchors and names of the sections that every page has, in order."""
_LOAD_AFTER = "warmth"
"""Behind this section stand effective context and the probes under load, where there are any."""
_STANDING_GLYPHS = {Standing.SHOWN: "✓", Standing.REFUTED: "✕", Standing.NOT_SHOWN: "○"}


def write_report(directory: Path) -> Path:
    """Derives the claim from the evidence in `directory`, writes ``report.html`` beside it and returns the path.

    The same evidence gives the same bytes. Raises EvidenceError when the evidence is missing or damaged, or when the
    directory cannot be written to.
    """
    view = load_view(directory)
    path = directory / REPORT_NAME
    try:
        write_whole(path, render_html(claim_of(view), view).encode())
    except OSError as problem:
        raise not_writable(directory, problem) from problem
    return path


def render_html(claim: Claim, view: EvidenceView) -> str:
    """The page as text. Pure: no clock, no network, no file but the package's own templates."""
    built = page.build(claim, view)
    return render_page("report.html.j2", built.title, page=built, labels=ARMS, contents=tuple(_contents(built)))


def render_page(template: str, title: str, **values: object) -> str:
    """A page that is complete in itself: a template with the package's own style and script."""
    script = _text("page.js")
    return (
        _environment()
        .get_template(template)
        .render(
            title=title,
            style=Markup(css_variables() + "\n" + _text("page.css")),  # noqa: S704 - our own files, no input
            script=Markup(script),  # noqa: S704 - our own file, no input
            script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            **values,
        )
    )


def _contents(built: page.Page) -> Iterator[tuple[str, str]]:
    for id_, name in _CONTENTS:
        yield id_, name
        if id_ == _LOAD_AFTER:
            if built.quality is not None:
                yield "quality", "Effective context"
            yield from ((part.id, part.title) for part in built.load_parts)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("longproof.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize,
    )
    filters: dict[str, Callable[..., str]] = {
        "tokens": tokens,
        "value": value_text,
        "spread": spread_text,
        "plural": plural,
        "n": sample_size,
        "css": css,
        "word": word,
        "kind": _kind,
        "glyph": _glyph,
        "mark": _STANDING_GLYPHS.__getitem__,
        "seen": describe_edge,
        "shortened": shortened,
        "drawing": _drawing,
    }
    environment.filters.update(filters)  # pyright: ignore[reportUnknownMemberType] # jinja2 leaves its type open
    return environment


def _kind(outcome: Outcome) -> str:
    return kind(outcome).value


def _glyph(outcome: Outcome) -> str:
    return look(outcome).glyph


def _drawing(figure: Figure) -> Markup:
    return Markup(figure.svg)  # noqa: S704 - drawn by report.plots, which escapes what it writes


def _finalize(value: object) -> object:
    return visible(value) if type(value) is str else value


@cache
def _text(name: str) -> str:
    return resources.files("longproof.report").joinpath("templates", name).read_text(encoding="utf-8")
