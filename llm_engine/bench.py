"""Forwarder: `python -m llm_engine.bench` is `halfsec bench llm`.

It needs torch, numpy, tokenizers and safetensors only, and Triton on a GPU.
"""

import importlib
import sys

if __name__ == "__main__":
    sys.exit(importlib.import_module("benchmarks.llm.__main__").main(sys.argv[1:]))
