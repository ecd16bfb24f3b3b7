"""Peak memory of `gander check` on models that are larger than it may become.

    python benchmarks/memory.py 7.2B --parts blocks.0,blocks.15,blocks.31,vocab.0
    python benchmarks/memory.py 1.5B --layers 6

writes a model of that shape (in bfloat16, a shard a block, in a temporary folder) and checks those of its parts, or all
of it, with `--by-block`. Mapped pages of the file are counted apart: the system drops them when memory is short.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from gander.checkpoint import SCHEMES
from gander.checkpoint.folder import CONFIG, INDEX
from gander.checkpoint.layout import shapes
from gander.checkpoint.names import block_of
from gander.checkpoint.synthetic import filled
from gander.golden.recipes import RANDOM_SIZES, Recipe, random_recipe

Tensors = dict[str, torch.Tensor]


def write_model(recipe: Recipe, folder: Path) -> None:
    """Every shard is written before the next is made. Blocks behind the second repeat its numbers, a row further."""
    scheme, names = SCHEMES["hf"], shapes(recipe.config)
    where = {}
    for shard, tensors in _shards(recipe, names):
        save_file(
            {scheme.stored(name): scheme.pack(name, x).contiguous() for name, x in tensors.items()}, folder / shard
        )
        where |= {scheme.stored(name): shard for name in tensors}
    (folder / INDEX).write_text(json.dumps({"weight_map": where}))
    (folder / CONFIG).write_text(json.dumps({"norm_eps": recipe.config.layer_norm_eps}))


def _shards(recipe: Recipe, names: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, Tensors]]:
    def made(block: str | None) -> Tensors:
        return {
            name: torch.from_numpy(filled(name, shape, recipe.fill(name), recipe.seed)).to(torch.bfloat16)
            for name, shape in names.items()
            if block_of(name) == block
        }

    yield "outside.safetensors", made(None)
    yield "blocks.0.safetensors", made("blocks.0")
    second = made("blocks.1")
    for i in range(1, recipe.config.layers):
        moved = {name.replace("blocks.1.", f"blocks.{i}."): x.roll(i - 1, 0) for name, x in second.items()}
        yield f"blocks.{i}.safetensors", moved


def peaks(command: list[str]) -> tuple[dict[str, int], float]:
    """The largest of each kind of memory while a command runs, in MB, and its seconds."""
    began, largest = time.perf_counter(), dict.fromkeys(("RssAnon", "RssFile", "VmHWM"), 0)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            for line in _status(process.pid):
                name, _, size = line.partition(":")
                if name in largest:
                    largest[name] = max(largest[name], int(size.split()[0]) // 1024)
            time.sleep(0.02)
        assert process.stdout is not None
        print(process.stdout.read().strip().splitlines()[-1])
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}")
    return largest, time.perf_counter() - began


def _status(pid: int) -> list[str]:
    try:
        return Path("/proc", str(pid), "status").read_text().splitlines()
    except OSError:  # has just ended
        return []


def main() -> None:
    """Write, check, print."""
    parser = argparse.ArgumentParser(description="Peak memory of gander check --by-block.")
    parser.add_argument("size", choices=[size for size in RANDOM_SIZES if not size.startswith("X")])
    parser.add_argument("--layers", type=int, help="another number of blocks")
    parser.add_argument("--parts", default="", help="of the model: blocks.0,vocab.0; all by default")
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    recipe = random_recipe(options.size)
    recipe = replace(recipe, config=replace(recipe.config, layers=options.layers or recipe.config.layers))
    with tempfile.TemporaryDirectory() as name:
        began, folder = time.perf_counter(), Path(name, "model")
        folder.mkdir()
        write_model(recipe, folder)
        size = sum(file.stat().st_size for file in folder.iterdir()) / 1e9
        print(f"{options.size}, {recipe.config.layers} blocks: {size:.1f} GB in {time.perf_counter() - began:.0f} s")
        models = [f"{folder}#{part}" for part in options.parts.split(",") if part] or [str(folder), "--by-block"]
        command = [sys.executable, "-m", "gander", "check", "--only", "layer.isolated", "--dtype", options.dtype]
        for model in models:
            command += [model] if model.startswith("--") else ["--model", model]
        os.environ["COLUMNS"] = "120"
        largest, seconds = peaks(command)
    print(f"anonymous {largest['RssAnon']} MB, mapped file {largest['RssFile']} MB, peak of both {largest['VmHWM']} MB")
    print(f"{seconds:.0f} s")


if __name__ == "__main__":
    main()
