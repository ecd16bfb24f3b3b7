"""What every module of a Hugging Face RWKV-7 gives, and the cache, as a file that `gander diff` and `diagnose` take.

    python dump_hf.py model-folder 3,511,7 dump.safetensors

Tensors are called as their modules are (`model.layers.0.attn.r_proj`). Needs transformers, rwkv7-hf and safetensors.
"""

import sys

import torch
from rwkv7_hf import RWKV7ForCausalLM
from safetensors.torch import save_file


def dump(folder: str, tokens: list[int]) -> dict[str, torch.Tensor]:
    """The outputs of one call over all tokens, from an empty state."""
    model = RWKV7ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    seen: dict[str, torch.Tensor] = {}

    def hook(name: str) -> object:
        def see(module: object, inputs: object, output: object) -> None:
            first = output[0] if isinstance(output, tuple) else output  # a block gives its cache as well
            if isinstance(first, torch.Tensor):
                seen[name] = first.detach().clone()

        return see

    for name, module in model.named_modules():
        module.register_forward_hook(hook(name))
    with torch.no_grad():
        given = model(torch.tensor([tokens]), use_cache=True)
    for i, kept in enumerate(given.past_key_values):
        for part, value in zip(("recurrent_state", "attention_shift", "ffn_shift"), kept, strict=True):
            seen[f"past_key_values.{i}.{part}"] = value.detach().clone().contiguous()
    return {name: value.contiguous() for name, value in seen.items() if value.is_floating_point()}


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    shown = dump(sys.argv[1], [int(token) for token in sys.argv[2].split(",")])
    save_file(shown, sys.argv[3])
    print(f"{len(shown)} tensors → {sys.argv[3]}")
