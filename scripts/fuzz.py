"""Fuzzes our own parsers (atheris) and the gateway's HTTP surface (schemathesis), for as long as wanted.

    python scripts/fuzz.py                       everything, 20 s for each parser and 60 s of HTTP
    python scripts/fuzz.py --only kv_events --seconds 600
    python scripts/fuzz.py --only http --seconds 3600 --seed 7

An input that breaks a parser is kept under tests/fuzz/corpus/NAME/, where every test run replays it. Exit 1 when
anything broke.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FUZZ = ROOT / "tests" / "fuzz"
RSS_MB = 2_048
ONE_INPUT_S = 20


def main() -> int:
    """Runs every wanted target, each parser in a process of its own."""
    options = _options()
    sys.path.insert(0, str(FUZZ))
    if options.target:
        if options.target == "http":
            return _http(options.seconds, options.seed)
        return _parser(options.target, options.seconds, options.seed, options.found)
    from seeds import SEEDS

    names = [*SEEDS, "http"] if not options.only else options.only.split(",")
    broken = [name for name in names if not _ran(name, options)]
    print(f"{len(names) - len(broken)} of {len(names)} held" + (f"; broken: {', '.join(broken)}" if broken else ""))
    return 1 if broken else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=int, default=None, help="for each parser (20), or of HTTP (60)")
    parser.add_argument("--only", default="", help="names, separated by commas; http is one of them")
    parser.add_argument("--seed", type=int, default=None, help="default: a fresh one, which is printed")
    parser.add_argument("--target", default="", help=argparse.SUPPRESS)
    parser.add_argument("--found", default="", help=argparse.SUPPRESS)
    found = parser.parse_args()
    found.seed = random.SystemRandom().randrange(1, 2**31) if found.seed is None else found.seed
    return found


def _ran(name: str, options: argparse.Namespace) -> bool:
    seconds = options.seconds or (60 if name == "http" else 20)
    print(f"== {name}: {seconds} s, seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, __file__, "--target", name, "--seconds", str(seconds), "--seed", str(options.seed)]
        ended = subprocess.run([*command, "--found", directory], check=False)
        for path in Path(directory).glob("*-*"):  # crash-…, timeout-…, oom-…
            kept = FUZZ / "corpus" / name / path.name.replace("crash-", "")[:20]
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(path.read_bytes())
            print(f"   kept {kept.relative_to(ROOT)} ({path.name.split('-')[0]})")
    return ended.returncode == 0


def _http(seconds: int, seed: int) -> int:
    from http_fuzz import fuzz, running, shown

    with tempfile.TemporaryDirectory() as directory, running(Path(directory)) as (one, engine):
        before = one.rss_bytes
        seen = fuzz(one, examples=40, base=seed, within_s=seconds)
        one.require_well()
        grown = (one.rss_bytes - before) >> 20
        print(f"   statuses {shown(seen)}; {len(engine.log.requests)} reached the engine; {grown} MiB more")
    return 0


def _parser(name: str, seconds: int, seed: int, found: str) -> int:
    import atheris  # before what it instruments

    with atheris.instrument_imports(include=["longproof", "jinja2", "tomllib"]):
        from targets import CORPUS, TARGETS
    from seeds import SEEDS

    starts = Path(found) / "starts"
    starts.mkdir()
    known = [path.read_bytes() for path in (CORPUS / name).glob("*") if path.is_file()]
    for data in (*SEEDS[name], *known):
        (starts / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    arguments = [
        "fuzz",
        f"-max_total_time={seconds}",
        f"-seed={seed}",
        f"-rss_limit_mb={RSS_MB}",
        f"-timeout={ONE_INPUT_S}",
        f"-artifact_prefix={found}/",
        "-max_len=4096",
        "-print_final_stats=1",
        "-verbosity=0",
        str(starts),
    ]
    atheris.Setup(arguments, TARGETS[name])
    atheris.Fuzz()  # libFuzzer ends the process
    return 0


if __name__ == "__main__":
    sys.exit(main())
