"""How a question ends a prompt: as it is, where a chat template says whose turn it is; else as text that only its
answer goes on from.

A base model continues what it reads. Behind a bare question it writes more text like the haystack: Gemma-3-270m (base)
answered 5 of 8 literal questions with their evidence alone, and 8 of 8 in this form. No worked example stands in front:
it would show values of its own, which small models copy.
"""

from __future__ import annotations

from longproof.domain.request import Route

QUESTION, ANSWER = "Question: ", "Answer:"
STOPS = (f"\n{QUESTION.rstrip()}", f"\n{ANSWER}")
"""Where a base model begins the next question, its answer has ended."""


def as_asked(question: str, route: Route) -> str:
    """The prompt's last lines. No space at the end: it belongs to the answer's first token."""
    return question if route is Route.CHAT else f"{QUESTION}{question}\n{ANSWER}"


def stops_of(route: Route) -> dict[str, object]:
    """Body fields that end the answer where the form would begin again."""
    return {} if route is Route.CHAT else {"stop": list(STOPS)}
