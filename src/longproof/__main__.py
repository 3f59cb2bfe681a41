"""``python -m longproof``."""

from __future__ import annotations

from longproof.cli.main import main

main()
