"""docs/reference/layouts.md names every rule that the code can say is broken."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONSTRUCTORS = {"_broken", "_vllm", "Broken"}


def rules_in(source: str) -> set[str]:
    """The constant `rule` of every Broken made in a module: the first argument of its helpers, or the keyword."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in CONSTRUCTORS:
            continue
        said = [keyword.value for keyword in node.keywords if keyword.arg == "rule"] or node.args[:1]
        found |= {one.value for one in said if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    return found


def test_every_layout_rule_is_on_the_page_when_the_code_has_it() -> None:
    modules = sorted((ROOT / "src" / "longproof" / "plan").glob("layout*.py"))
    rules = set().union(*(rules_in(module.read_text(encoding="utf-8")) for module in modules))
    assert len(rules) > 30
    page = " ".join((ROOT / "docs" / "reference" / "layouts.md").read_text(encoding="utf-8").split()).lower()
    assert [rule for rule in sorted(rules) if rule.lower() not in page] == []
