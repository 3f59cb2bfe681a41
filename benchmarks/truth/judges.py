"""The judge of each engine."""

from __future__ import annotations

from collections.abc import Callable

from longproof.errors import UserError
from longproof.geometry.model import ModelGeometry
from truth.cases import Case
from truth.judge_llamacpp import judge_llamacpp
from truth.judge_sglang import judge_sglang
from truth.judge_trtllm import judge_trtllm, judge_unlisted
from truth.judge_vllm import judge_vllm
from truth.models import KnownModels
from truth.verdict import Outcome, Verdict

_JUDGES: dict[str, Callable[[Case, ModelGeometry], Verdict]] = {
    "vllm": judge_vllm,
    "sglang": judge_sglang,
    "llama.cpp": judge_llamacpp,
    "tensorrt-llm": judge_trtllm,
}


def judge(case: Case, models: KnownModels) -> Verdict:
    """The verdict on one case; UNKNOWN when its engine has no rules here or its model no usable config."""
    rules = _JUDGES.get(case.engine)
    if rules is None:
        return Verdict(Outcome.UNKNOWN, "", "", why=f"no rules for {case.engine}")
    try:
        geometry = models.geometry(case.config_model or case.model) or models.geometry(case.model)
    except UserError as error:
        return Verdict(Outcome.UNKNOWN, "", "", why=str(error))
    if geometry is None:
        why = f"the model file does not list {case.config_model or case.model}"
        return judge_unlisted(case) or Verdict(Outcome.UNKNOWN, "", "", why=why)
    try:
        return rules(case, geometry)
    except Exception as bug:
        # One odd report must not hide the verdicts on all others; it counts against us.
        return Verdict(Outcome.DISAGREES, "nothing", "", why=f"our bug: {type(bug).__name__}: {bug}")
