"""Model files from the Hugging Face Hub: ``hf://owner/repository[@revision]/path/file.gguf``."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import httpx

from longproof.errors import ModelFileError

SCHEME = "hf://"
_ADDRESS = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([^/]+))?/(.+)")


def hub_file(address: str) -> Path:
    """The file in the hub's own cache, downloaded first if it is not there (resumable; later runs work offline).

    Raises ModelFileError with the next step: for a malformed address, an unknown repository, revision or file, a gated
    or private repository, and no network.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise ModelFileError(f"'{address}' is not a hub file", advice="write hf://owner/repository/file.gguf")
    repository, revision, file_name = found.groups()
    # imported here: half a second that nobody pays who uses a local file
    hub = importlib.import_module("huggingface_hub")
    errors = importlib.import_module("huggingface_hub.errors")
    where = f"{repository}@{revision}" if revision else repository
    try:
        return Path(hub.hf_hub_download(repository, file_name, revision=revision, library_name="longproof"))
    except errors.GatedRepoError as problem:
        raise ModelFileError(
            f"{where} is gated: the hub wants to know who you are",
            advice="accept its conditions on the hub, then set HF_TOKEN",
        ) from problem
    except errors.RepositoryNotFoundError as problem:
        raise ModelFileError(
            f"the hub has no repository {repository}, or it is private",
            advice="check its name; for a private one set HF_TOKEN",
        ) from problem
    except errors.RevisionNotFoundError as problem:
        raise ModelFileError(
            f"{repository} has no revision {revision}", advice="check the branch, tag or commit after '@'"
        ) from problem
    except errors.LocalEntryNotFoundError as problem:
        raise ModelFileError(
            f"{file_name} of {where} is not on this machine, and the hub cannot be reached",
            advice="check the network (HF_ENDPOINT, HF_HUB_OFFLINE), or download it elsewhere and pass --model PATH",
        ) from problem
    except errors.EntryNotFoundError as problem:
        raise ModelFileError(f"{where} has no file {file_name}", advice="check the file's name and folder") from problem
    except errors.HFValidationError as problem:
        raise ModelFileError(
            f"'{address}' is not a hub file: {problem}", advice="write hf://owner/repository/file.gguf"
        ) from problem
    except (errors.HfHubHTTPError, httpx.HTTPError, OSError) as problem:
        raise ModelFileError(
            f"{file_name} of {where} cannot be fetched: {problem}",
            advice="try again, or download it elsewhere and pass --model PATH",
        ) from problem
