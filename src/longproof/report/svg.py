"""matplotlib's SVG → a fragment that lives inside the page: scales, inherits its font, follows its theme, clashes
with nothing."""

from __future__ import annotations

import re
from html import escape

from longproof.report.theme import with_variables

_PROLOG = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_NOT_NEEDED = re.compile(r"<style.*?</style>|<metadata>.*?</metadata>|<!--.*?-->|<defs>\s*</defs>", re.DOTALL)
_FONT_FAMILY = re.compile(r"font-family: [^;\"]*;? ?")
_ID = re.compile(r' id="([^"]+)"')
_USED_ID = re.compile(r'(?:xlink:href="#|url\(#)([^")]+)')
_ROOT = re.compile(r"<svg[^>]*viewBox=\"([^\"]+)\"[^>]*>")
_NO_TURN = re.compile(r' transform="rotate\(-?0 [^"]*"')
_SPACES = re.compile(r"\s+")


def embed(svg: str, *, name: str, title: str, description: str) -> str:
    """The drawing as an ``<svg>`` element for HTML.

    `name` prefixes every id, so that drawings on one page do not share any. `title` and `description` are what a
    screen reader says instead of the drawing; both are escaped here. Width and height go: the view box and the
    page's CSS give the size.
    """
    body = _NOT_NEEDED.sub("", _PROLOG.sub("", svg))
    used = set(_USED_ID.findall(body))
    body = _ID.sub(lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", body)
    body = body.replace('xlink:href="#', f'href="#{name}-').replace("url(#", f"url(#{name}-")
    body = _NO_TURN.sub("", _FONT_FAMILY.sub("", body))
    body = _SPACES.sub(" ", body).replace("> <", "><").replace(' style=""', "")
    view_box = _ROOT.search(body)
    if view_box is None:
        raise ValueError("not an SVG with a view box")
    head = (
        f'<svg class="plot" viewBox="{view_box[1]}" role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
    )
    return with_variables(_ROOT.sub(lambda _: head, body, count=1)).strip()
