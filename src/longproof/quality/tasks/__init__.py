"""Every family there is. A new one is a file here and a line in `FAMILIES`."""

from __future__ import annotations

from longproof.quality.item import Family
from longproof.quality.tasks.absent import AbsentOrPresent
from longproof.quality.tasks.alias import AliasChain
from longproof.quality.tasks.call_trace import CallTrace
from longproof.quality.tasks.code_definition import RELATIONS, VALUES, CodeDefinition
from longproof.quality.tasks.copy import Copy
from longproof.quality.tasks.count import Counting
from longproof.quality.tasks.join import Join
from longproof.quality.tasks.literal import Literal
from longproof.quality.tasks.multi_key import DenseKeys, MultiKey, keys_at
from longproof.quality.tasks.multi_value import MultiValue
from longproof.quality.tasks.order import SameRequest
from longproof.quality.tasks.paraphrase import Paraphrase
from longproof.quality.tasks.quote import QuoteAttribution
from longproof.quality.tasks.state import LatestState

_ALL: tuple[Family, ...] = (
    Literal(),
    MultiKey(),
    DenseKeys(),
    MultiValue(),
    AliasChain(name="alias-2", hops=2),
    AliasChain(name="alias-3", hops=3),
    Paraphrase(),
    Counting(),
    SameRequest(name="order-4", requests=4),
    SameRequest(name="order-8", requests=8),
    AbsentOrPresent(),
    AbsentOrPresent(name="absent-free", free=True),
    LatestState(),
    Copy(),
    CodeDefinition(name="code-definition", asked=VALUES),
    CodeDefinition(name="code-relation", asked=RELATIONS),
    CallTrace(),
    QuoteAttribution(),
    Join(),
)

FAMILIES: dict[str, Family] = {family.name: family for family in _ALL}
"""Name → family: those of our own wording, then those built from the corpus' documents."""


def chance_of(family: Family, shortest_tokens: int) -> float:
    """The most that a guess is worth in any item of at least that many tokens."""
    return 1 / keys_at(shortest_tokens) if isinstance(family, DenseKeys) else family.chance
