"""Metrics text is read as the reference parser reads it, whatever is left out."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from longproof.engines.metrics_text import metric_values, sample_name

KEPT = Path(__file__).parent
TEXTS = [(KEPT / "vllm_0_32" / "metrics.txt").read_text(), (KEPT / "sglang_0_5_23" / "metrics.txt").read_text()]
ODD = """# HELP a Help with a { in it.
# TYPE a gauge
a 1
a{x="1"} 2
a{x="sp ace", y="br}ace\\\\"} 3
a{x="1"} 4 1700000000000
b 5 1700000000000
b_total\t6
 c 7
d{} 8
e{x="1",} 9
f +Inf
"""


def reference(text: str) -> dict[str, float]:
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {sample_name(s.name, s.labels): s.value for s in samples if math.isfinite(s.value)}


@pytest.mark.parametrize("text", [*TEXTS, ODD])
def test_values_are_the_reference_parser_s_when_all_are_kept(text: str) -> None:
    assert len(reference(text)) > 3
    assert metric_values(text) == reference(text)
    assert metric_values(text) == reference(text)  # from what was remembered


@settings(deadline=None)
@given(labels=st.dictionaries(st.from_regex(r"[a-z][a-z_]{0,4}", fullmatch=True), st.text(max_size=8), max_size=3))
def test_values_are_the_reference_parser_s_whatever_the_labels_say(labels: dict[str, str]) -> None:
    # U+0085 and the like end a line for str.splitlines, not for this format
    text = f"{sample_name('m', labels)} 1.5\nnext 2\n"
    assert metric_values(text) == {sample_name("m", labels): 1.5, "next": 2.0}


def test_only_what_is_kept_is_read() -> None:
    asked: list[str] = []

    def keep(name: str) -> bool:
        asked.append(name)
        return name in {"a", "c"}

    values = metric_values(ODD + 'broken{x="\n', keep)
    assert values == {"a": 1, 'a{x="1"}': 4, 'a{x="sp ace",y="br}ace\\\\"}': 3, "c": 7}
    assert sorted(asked) == sorted(set(asked))  # once per name, not once per line


def test_what_stands_before_the_first_fault_is_kept() -> None:
    assert metric_values("a 1\nb{ 2\nc 3\n") == {"a": 1.0}
