#!/usr/bin/env bash
# Makes .venv, or brings it up to date: longproof editable, with the groups test, check and docs.
# uv is used where it is on the PATH and new enough to know dependency groups, else venv and pip.
# PYTHON=… chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."

groups=(--group test --group check --group docs)

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3 python}; do
    if new_enough "$candidate"; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  echo "longproof needs Python 3.11 or newer; looked for: ${PYTHON:-python3.13 python3.12 python3.11 python3 python}." >&2
  echo "Next step: install one (Debian 12 and later: apt-get install python3 python3-venv), or name it: make env PYTHON=/path/to/python3.12" >&2
  return 2
}

uv_knows_groups() { command -v uv >/dev/null 2>&1 && uv pip install --help 2>/dev/null | grep -q -- '--group'; }

if [ -e .venv ] && ! new_enough .venv/bin/python; then
  rm -rf .venv # made for a Python that is gone or too old, or left half-made
fi

if uv_knows_groups; then
  [ -e .venv ] || uv venv --quiet --python "${PYTHON:->=3.11}" .venv
  uv pip install --quiet --python .venv/bin/python --editable . "${groups[@]}"
else
  if ! [ -e .venv ]; then
    python=$(find_python)
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
      echo "$python cannot make virtual environments. Next step: install its venv module (Debian: apt-get install python3-venv), or uv." >&2
      exit 2
    fi
    "$python" -m venv .venv
  fi
  # The pip that comes with an older Python does not know dependency groups; they came with pip 25.1.
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable . "${groups[@]}"
fi
