"""GuideLLM's synthetic prompts, one per line of stdin: ``{"tokens": 1000, "seed": 1}`` → ``{"seconds": …, "file": …}``.

Run by benchmarks/prompt_build.py with the interpreter of an environment that has guidellm. The clock covers what the
tool does per prompt; imports and the tokenizer's loading are over before the first line is read.

    guidellm_prompts.py TOKENIZER_DIR OUTPUT_DIR
    guidellm_prompts.py --export GGUF TOKENIZER_DIR      writes the GGUF's tokenizer as a Hugging Face directory and
    ends
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from transformers import AutoTokenizer

if sys.argv[1] == "--export":
    gguf = Path(sys.argv[2])
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(sys.argv[3])
    sys.exit(0)

from guidellm.data.deserializers.synthetic import SyntheticTextDataset
from guidellm.schemas.data.deserializers import SyntheticTextDataArgs

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
print("{}", flush=True)
for line in sys.stdin:
    wanted = json.loads(line)
    began = time.perf_counter()
    arguments = SyntheticTextDataArgs(prompt_tokens=wanted["tokens"], output_tokens=1)
    row = next(iter(SyntheticTextDataset(arguments, tokenizer, random_seed=wanted["seed"])))
    text = json.loads(row["conversation_turns"])["turns"][0]["columns"]["text_column"][0]
    seconds = time.perf_counter() - began
    file = Path(sys.argv[2]) / "guidellm.txt"
    file.write_text(text, encoding="utf-8")
    print(json.dumps({"seconds": seconds, "file": str(file)}), flush=True)
