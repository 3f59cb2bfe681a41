"""A broken layout rule, and the rules every engine shares: heads, states and stages.

The engine's own words are kept where it has some: they are what the user would read after renting the devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from longproof.errors import LayoutError
from longproof.geometry.kinds import GroupedAttention, LatentAttention, LayerKind, RecurrentState
from longproof.geometry.model import ModelGeometry
from longproof.geometry.sharding import PartitionRule, kv_heads_on_rank, rank_state, stage_partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A rule a layout breaks. `rule`: in our words; `reason`: the engine's message, or ours where it has none.

    `source` says where the rule was read. `advice`: the next step.
    """

    rule: str
    reason: str
    source: str
    advice: str

    def error(self, layout: str) -> LayoutError:
        """As the error that refuses the layout of that name."""
        return LayoutError(f"{layout} is impossible: {self.reason} ({self.source})", advice=self.advice, rule=self.rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTraits:
    """What layout rules ask of a model. `query_heads`, `kv_heads`: every value that occurs, smallest first."""

    layers: int
    query_heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    latent: bool
    sparse_latent: bool
    windowed: bool
    chunked: bool
    states: tuple[RecurrentState, ...]
    encoder: bool
    experts: int

    @property
    def recurrent(self) -> bool:
        """Whether any layer keeps a recurrent state."""
        return bool(self.states)


def traits_of(geometry: ModelGeometry) -> ModelTraits:
    """Read once per model: a search asks thousands of times."""
    attentions = {layer.attention for layer in geometry.layers if layer.attention is not None}
    grouped = [a for a in attentions if isinstance(a, GroupedAttention)]
    latent = [a for a in attentions if isinstance(a, LatentAttention)]
    return ModelTraits(
        layers=len(geometry.layers),
        query_heads=tuple(sorted({a.query_heads for a in attentions if a.query_heads is not None})),
        kv_heads=tuple(sorted({a.kv_heads for a in grouped})),
        latent=bool(latent),
        sparse_latent=any(a.indexer is not None for a in latent),
        windowed=any(a.kind is LayerKind.SLIDING for a in grouped),
        chunked=any(a.kind is LayerKind.CHUNKED for a in grouped),
        states=tuple({layer.state for layer in geometry.layers if layer.state is not None}),
        encoder=any(layer.cross is not None for layer in geometry.layers),
        experts=max((layer.mlp.experts for layer in geometry.layers if layer.mlp is not None), default=0),
    )


def broken_heads(traits: ModelTraits, ranks: int, source: str) -> Iterator[Broken]:
    """KV heads and recurrent heads that cannot be spread over `ranks`."""
    for heads in traits.kv_heads:
        yield from _caught(lambda heads=heads: kv_heads_on_rank(heads, ranks), source)
    for state in traits.states:
        yield from _caught(lambda state=state: rank_state(state, ranks), source)


def broken_stages(
    traits: ModelTraits, stages: int, given: tuple[int, ...], rule: PartitionRule, source: str
) -> Iterator[Broken]:
    """Pipeline stages without a layer, or a partition that does not add up."""
    yield from _caught(lambda: stage_partition(traits.layers, stages, rule, given=given), source)


def _caught(attempt: Callable[[], object], source: str) -> Iterator[Broken]:
    try:
        attempt()
    except LayoutError as problem:
        yield Broken(rule=problem.rule, reason=problem.problem, source=source, advice=problem.advice)
