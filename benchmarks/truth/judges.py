"""The judge of each engine."""

from __future__ import annotations

from collections.abc import Callable

from longproof.errors import UserError
from longproof.geometry.model import ModelGeometry
from truth.cases import Case
from truth.judge_vllm import judge_vllm
from truth.models import KnownModels
from truth.verdict import Outcome, Verdict

_JUDGES: dict[str, Callable[[Case, ModelGeometry], Verdict]] = {"vllm": judge_vllm}


def judge(case: Case, models: KnownModels) -> Verdict:
    """The verdict on one case; UNKNOWN when its engine has no rules here or its model no usable config."""
    rules = _JUDGES.get(case.engine)
    if rules is None:
        return Verdict(Outcome.UNKNOWN, "", "", why=f"no rules for {case.engine}")
    try:
        geometry = models.geometry(case.model)
    except UserError as error:
        return Verdict(Outcome.UNKNOWN, "", "", why=str(error))
    if geometry is None:
        return Verdict(Outcome.UNKNOWN, "", "", why=f"the model file does not list {case.model}")
    return rules(case, geometry)
