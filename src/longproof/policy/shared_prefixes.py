"""Prefixes that running requests use on one stage of one replica: shared blocks are there once, and stay while anybody
refers to them.

A request's blocks are chained (`policy.hashing`): equal names at depth d mean equal names everywhere before it. So the
prefixes in use form a tree whose edges are runs of blocks, and where a chain leaves an edge is found by bisection. No
step costs time per block: a prompt of 62,500 blocks is pinned as fast as one of six.

    root ──[0, 64) system prompt, 3 refs──┬──[64, 900) one conversation, 2 refs
                                          └──[64, 70)  another, 1 ref

An edge is *ready* once the request that brought it has produced a token, and as far as its blocks were cached when it
came: before, they are not computed, and an engine that is given the same prompt again computes it again, in blocks of
its own. Such a request's blocks are its own from the unready edge on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class _Edge:
    """Blocks [start, end) of the chain `names` (which begins at the root). `refs`: pins whose path has this edge;
    `ends`: pins whose path ends with it."""

    names: Sequence[int]
    start: int
    end: int
    parent: _Edge | None
    refs: int = 0
    ends: int = 0
    ready: bool = True
    children: dict[int, _Edge] = field(default_factory=dict[int, "_Edge"])

    def shared_end(self, names: Sequence[int]) -> int:
        """How far `names` runs along this edge, by bisection; it does so at `start`."""
        low, high = self.start + 1, min(self.end, len(names))
        if self.names[high - 1] == names[high - 1]:
            return high
        while low < high - 1:
            middle = (low + high) // 2
            if self.names[middle - 1] == names[middle - 1]:
                low = middle
            else:
                high = middle
        return low


@dataclass(slots=True, eq=False)
class Pin:
    """One request's path. `found`: leading blocks that were in use already; `depth`: all that it pins."""

    leaf: _Edge
    found: int
    depth: int
    own: _Edge | None


Span = tuple[int, int]
"""Blocks from the first number up to, not including, the second."""


@dataclass(slots=True)
class SharedPrefixes:
    """The tree of one stage. `blocks_in_use` counts every block once."""

    blocks_in_use: int = 0
    _root: _Edge = field(default_factory=lambda: _Edge((), 0, 0, None))

    @property
    def runs(self) -> int:
        """Edges of the tree: never more than three per pin, however long prompts are."""
        edges, count = [self._root], 0
        while edges:
            children = edges.pop().children
            count += len(children)
            edges += children.values()
        return count

    def found(self, names: Sequence[int], cached: int = 0) -> int:
        """Leading blocks of `names` that are in use and computed: a new request takes no room for them. The first
        `cached` of them are computed whatever is known of those who brought them."""
        edge, depth = self._root, 0
        while depth < len(names):
            child = edge.children.get(names[depth])
            if child is None or not (child.ready or cached > depth):
                break
            depth = child.shared_end(names) if child.ready else min(cached, child.shared_end(names))
            if depth < child.end:
                break
            edge = child
        return depth

    def pin(self, names: Sequence[int], cached: int = 0) -> Pin:
        """Refer to `names` until `unpin`. The first `cached` of them are in the engine's cache already."""
        edge, depth, blocked = self._root, 0, False
        while depth < len(names):
            child = edge.children.get(names[depth])
            if child is None:
                break
            if not child.ready and cached > depth:  # what was computed since is there for others
                at = min(cached, child.shared_end(names))
                child = child if at == child.end else self._split(child, at)
                child.ready = True
            if not child.ready:
                blocked = True
                break
            depth = child.shared_end(names)
            edge = child if depth == child.end else self._split(child, depth)
        found, own = depth, None
        if depth < len(names) and not blocked:
            self.blocks_in_use += len(names) - depth
            if cached > depth:
                edge = self._grow(edge, names, depth, min(cached, len(names)), ready=True)
                depth = edge.end
            if depth < len(names):
                own = edge = self._grow(edge, names, depth, len(names), ready=False)
                depth = len(names)
        edge.ends += 1
        step: _Edge | None = edge
        while step is not None:
            step.refs += 1
            step = step.parent
        return Pin(edge, found, depth, own)

    def computed(self, pin: Pin) -> None:
        """The pin's own blocks are computed: others may share them from now on."""
        if pin.own is not None:
            pin.own.ready = True
            if pin.own.parent is not None:
                self._join(pin.own.parent)
            pin.own = None

    def alone_from(self, pin: Pin) -> int:
        """The depth from which on nobody but this pin refers to its path."""
        edge, depth = pin.leaf, pin.depth
        while edge.refs == 1 and edge.parent is not None:
            depth, edge = edge.start, edge.parent
        return depth

    def unpin(self, pin: Pin) -> Span:
        """Refer no longer. Returns the blocks that nobody refers to any more; they are the last ones of the path."""
        edge: _Edge | None = pin.leaf
        pin.leaf.ends -= 1
        gone = pin.depth
        while edge is not None:
            edge.refs -= 1
            parent = edge.parent
            if parent is not None and edge.refs == 0:
                del parent.children[edge.names[edge.start]]
                gone = edge.start
                self.blocks_in_use -= edge.end - edge.start
                self._join(parent)
            elif edge is pin.leaf:
                self._join(edge)
            edge = parent
        return gone, pin.depth

    @staticmethod
    def _grow(edge: _Edge, names: Sequence[int], start: int, end: int, *, ready: bool) -> _Edge:
        """A new edge below `edge`."""
        new = _Edge(names if end == len(names) else names[:end], start, end, edge, ready=ready)
        edge.children[names[start]] = new
        return new

    def _split(self, edge: _Edge, at: int) -> _Edge:
        """Cut `edge` in two at depth `at`. The lower part stays the same object, so that pins that end there still do;
        returns the upper one."""
        assert edge.parent is not None
        upper = _Edge(edge.names[:at], edge.start, at, edge.parent, refs=edge.refs, ready=edge.ready)
        edge.parent.children[edge.names[edge.start]] = upper
        upper.children[edge.names[at]] = edge
        edge.start, edge.parent = at, upper
        return upper

    def _join(self, edge: _Edge) -> None:
        """Undo a split that nobody needs any more."""
        if edge.parent is None or edge.ends or len(edge.children) != 1:
            return
        (lower,) = edge.children.values()
        if not lower.ready or not edge.refs:
            return
        lower.start, lower.parent = edge.start, edge.parent
        edge.parent.children[edge.names[edge.start]] = lower
