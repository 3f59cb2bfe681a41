"""Everything that can go wrong, in one tree.

    LongproofError
    ├── UserError                 you must change something                      exit 2
    │   ├── UsageError              an option or argument makes no sense
    │   ├── TargetError             the URL, key or model does not answer as asked
    │   ├── ModelFileError          a model file cannot be read, found or trusted
    │   │   └── GeometryError         its description lacks what decides the size of its cache or weights
    │   ├── LayoutError             the model cannot be spread over ranks and stages as asked
    │   ├── BudgetError             the budget does not hold the smallest useful run
    │   ├── CorpusError             a corpus cannot be read, is damaged, or is shorter than what is asked of it
    │   ├── EvidenceError           the evidence directory is damaged, sealed or of another run
    │   └── ConfigurationMismatch   a claim was asked about a configuration it does not describe
    └── EngineMisbehaved          the server under test broke its word: recorded as a finding, never a crash
        ├── EngineUnreachable       no connection, or it was lost
        │   └── EngineSilent          a connection, and no answer in time
        ├── EngineProtocolError     an answer that is not what the protocol says
        └── EngineDied              the process we own ended

Anything else that escapes is our bug: a traceback and exit 70.

A `UserError` says four things: what was asked, the limit, the actual value, and what to do next. `longproof.cli` is the
only place that prints errors and turns them into exit codes.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_GATE_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_UNDECIDED = 3
EXIT_OUR_BUG = 70
EXIT_INTERRUPTED = 130


class LongproofError(Exception):
    """Root of the tree; `exit_code` is what the command line returns for it."""

    exit_code: int = EXIT_OUR_BUG


class UserError(LongproofError):
    """Something the user has to change. `problem` says what was asked, limit and actual; `advice` the next step."""

    exit_code = EXIT_USER_ERROR

    def __init__(self, problem: str, *, advice: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.advice = advice


class UsageError(UserError):
    """An option or argument that cannot be meant."""


class TargetError(UserError):
    """The server that was named cannot be proved: unreachable, refusing the key, not OpenAI-compatible, model
    unknown."""


class ModelFileError(UserError):
    """A model file is missing, unreadable, not a GGUF, or not the one that was pinned."""


class GeometryError(ModelFileError):
    """A model's description does not settle what it costs. `missing` names the fields that would."""

    def __init__(self, problem: str, *, advice: str, missing: tuple[str, ...] = ()) -> None:
        super().__init__(problem, advice=advice)
        self.missing = missing


class LayoutError(UserError):
    """A layout breaks a rule: heads that do not divide, stages that do not add up. `rule` states the rule."""

    def __init__(self, problem: str, *, advice: str, rule: str = "") -> None:
        super().__init__(problem, advice=advice)
        self.rule = rule


class BudgetError(UserError):
    """The budget is smaller than the smallest run that could say anything."""


class CorpusError(UserError):
    """A corpus cannot be found, read or trusted, holds nothing of the kind asked for, or is too short."""


class EvidenceError(UserError):
    """The evidence directory is missing, damaged, sealed, or belongs to another run."""


class ConfigurationMismatch(UserError):  # noqa: N818 - named for what happened
    """A claim was held against a deployment it does not describe. `fields` names what differs: (field, claimed,
    actual)."""

    def __init__(self, problem: str, *, advice: str, fields: tuple[tuple[str, str, str], ...] = ()) -> None:
        super().__init__(problem, advice=advice)
        self.fields = fields


class EngineMisbehaved(LongproofError):  # noqa: N818 - named for what happened
    """The server under test did something its protocol does not allow. Probes record it; it never ends a run by
    itself."""

    def __init__(self, what: str, *, url: str = "") -> None:
        super().__init__(f"{what} ({url})" if url else what)
        self.what = what
        self.url = url


class EngineUnreachable(EngineMisbehaved):
    """No connection could be made, or it was lost before an answer."""


class EngineSilent(EngineUnreachable):
    """It was given as long as it had, and has not answered: it may only be busy."""


class EngineProtocolError(EngineMisbehaved):
    """An answer that is not JSON, not SSE, or lacks what the protocol promises."""


class EngineDied(EngineMisbehaved):
    """The engine process we own has ended. `exit_code` is its own; `log_tail` the last lines it wrote."""

    def __init__(self, what: str, *, url: str = "", returncode: int | None = None, log_tail: str = "") -> None:
        super().__init__(what, url=url)
        self.returncode = returncode
        self.log_tail = log_tail
