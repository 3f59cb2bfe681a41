"""AIPerf's synthetic prompts, one per line of stdin: ``{"tokens": 1000, "seed": 1}`` → ``{"seconds": …, "file": …}``.

Run by benchmarks/prompt_build.py with the interpreter of an environment that has aiperf. The clock covers what the tool
does per prompt; imports, the tokenizer's loading and the tokenizing of its corpus are over before the first line is
read.

    aiperf_prompts.py TOKENIZER_DIR OUTPUT_DIR
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from aiperf.common import random_generator
from aiperf.common.tokenizer import Tokenizer
from aiperf.dataset.generator import PromptGenerator

random_generator.init(1)
generator = PromptGenerator(
    prompts=None, prefix_prompts=None, tokenizer=Tokenizer.from_pretrained(sys.argv[1], resolve_alias=False)
)
print("{}", flush=True)
for line in sys.stdin:
    wanted = json.loads(line)
    began = time.perf_counter()
    text = generator.generate(mean=wanted["tokens"], stddev=0)
    seconds = time.perf_counter() - began
    file = Path(sys.argv[2]) / "aiperf.txt"
    file.write_text(text, encoding="utf-8")
    print(json.dumps({"seconds": seconds, "file": str(file)}), flush=True)
