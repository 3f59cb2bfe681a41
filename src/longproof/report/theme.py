"""Plots are drawn in *sentinel* colours that stand for a role of the palette. On the page each becomes a CSS variable,
so one drawing serves both themes."""

from __future__ import annotations

from longproof.domain.palette import DARK, LIGHT, Role, css_variables

__all__ = ["DARK", "LIGHT", "Role", "css_variables", "sentinel", "with_variables"]


def sentinel(role: Role) -> str:
    """The colour that stands for a role while a plot is drawn: no real drawing uses it by chance."""
    return f"#fd{list(Role).index(role):02x}b7"


def with_variables(svg: str) -> str:
    """Sentinels → ``var(--role)``. They must stand in style attributes: presentation attributes take no variables."""
    for role in Role:
        svg = svg.replace(sentinel(role), f"var(--{role.value})")
    return svg
