"""Engines by name: the project's own, those that a package provides, anyone's Python class (`py:module:Class`), and
any program (`cmd:./engine --flag`).

Only names here: the modules behind them are imported when an engine is asked for.
"""

__all__ = ["ANSWER_TIMEOUT", "ENGINES", "IMPORT_TIMEOUT", "OTHERS"]

IMPORT_TIMEOUT = 60.0  # seconds; importing torch takes two or three
ANSWER_TIMEOUT = 120.0  # seconds; a program's answer to one request

# Name → the module that has an `Engine` class, relative to this one, and what it is.
ENGINES = {
    "optimized": ("...optimized", "this project's fast engine, in torch"),
    "compiled": (".compiled", "the same with its compiled loops on for small models too: what large ones are run by"),
    "cuda": (".cuda", "the same on a CUDA device"),
    "reference": (".reference", "the literal reference itself, float64"),
    "rwkv": (".rwkv", "PyPI rwkv (pip install 'gander-rwkv[peers]'), fp32 on the CPU"),
    "rwkv-x": (".rwkv_x", "PyPI rwkv-x (pip install 'gander-rwkv[peers]'), fp32 on the CPU, for RWKV-X"),
    "hf": (".hf", "PyPI rwkv7-hf through transformers (pip install 'gander-rwkv[peers]'), fp32 on the CPU"),
    "onnx": (".onnx", "this project's ONNX export in onnxruntime (pip install 'gander-rwkv[peers]'), fp32 on the CPU"),
    "llama.cpp": (".llama_cpp", "PyPI llama-cpp-python (pip install 'gander-rwkv[llama]'), on the CPU"),
}

OTHERS = "py:MODULE:CLASS or 'cmd:PROGRAM ARGUMENTS'"
