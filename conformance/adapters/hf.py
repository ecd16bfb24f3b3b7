"""`rwkv7-hf` through transformers as an engine, fp32 on the CPU. It shows logits and state, no taps."""

import tempfile
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

import numpy as np
import torch

from ...checkpoint import Checkpoint, write
from ...errors import needs
from ..engine import Array, Arrays

__all__ = ["Engine"]

with needs("engine 'hf'", "transformers"), needs("engine 'hf'", "rwkv7-hf"):
    from rwkv7_hf import RWKV7Cache, RWKV7ForCausalLM
    from transformers.utils import logging

logging.set_verbosity_error()  # type: ignore[no-untyped-call, unused-ignore]
logging.disable_progress_bar()  # type: ignore[no-untyped-call, unused-ignore]


class Engine:
    """transformers' RWKV7ForCausalLM, as rwkv7-hf has it."""

    name = "hf"
    dtype = "float32"
    capabilities = frozenset({"state", "snapshot", "batch", "threads"})

    def load(self, checkpoint: Checkpoint) -> None:
        """Through a folder, as anyone loads it.

        A folder means a GroupNorm eps of head size · 1e-5. Where the model's is another, the modules are told it
        afterwards: only so can the rest be compared.
        """
        self._config = checkpoint.config
        self._own_threads = torch.get_num_threads()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model")
            write(checkpoint, path, "hf", allow_change=True)
            self._model = RWKV7ForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        for module in self._model.modules():
            if isinstance(module, torch.nn.GroupNorm):
                module.eps = checkpoint.config.group_norm_eps

    def close(self) -> None:
        self._model = None

    def initial_state(self) -> RWKV7Cache:
        return RWKV7Cache(num_layers=self._config.layers)

    def forward(
        self, tokens: Sequence[int], state: RWKV7Cache, *, taps: MutableMapping[str, Array] | None = None
    ) -> Array:
        return self._logits(torch.tensor([list(tokens)]), state)[0]

    def forward_batch(self, rows: Sequence[Sequence[int]], states: Sequence[RWKV7Cache]) -> list[Array]:
        """Padded on the left, as `generate` takes rows, with a mask."""
        longest = max(map(len, rows))
        tokens = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        arrays = [self.export_state(state) for state in states]
        together = self._cache([{name: one[name] for name in arrays[0]} for one in arrays])
        logits = self._logits(tokens, together, mask)
        for i, (row, state) in enumerate(zip(rows, states, strict=True)):
            alone = together.select_batch(torch.tensor([i]), inplace=False)
            self.rollback(state, alone)
            state.seen_tokens += len(row)
        return [each[longest - len(row) :] for each, row in zip(logits, rows, strict=True)]

    def clone(self, state: RWKV7Cache) -> RWKV7Cache:
        return state.clone()

    snapshot = clone

    def reset(self, state: RWKV7Cache) -> None:
        state.reset()

    def rollback(self, state: RWKV7Cache, snapshot: RWKV7Cache) -> None:
        copy = snapshot.clone()
        state.recurrent_state, state.attention_shift = copy.recurrent_state, copy.attention_shift
        state.ffn_shift, state.seen_tokens = copy.ffn_shift, copy.seen_tokens

    def set_threads(self, threads: int | None) -> None:
        torch.set_num_threads(threads or self._own_threads)

    def export_state(self, state: RWKV7Cache) -> Arrays:
        """The cache keeps wkv as [key, value]."""
        config = self._config
        wkv, shift = (config.heads, config.head_size, config.head_size), (config.width,)
        arrays = {}
        for i, (recurrent, att_x, ffn_x) in enumerate(state):
            turned = None if recurrent is None else recurrent.transpose(-1, -2)
            for name, value, shape in (("att_x", att_x, shift), ("wkv", turned, wkv), ("ffn_x", ffn_x, shift)):
                array = np.zeros(shape, np.float32) if value is None else value[0].numpy().copy()
                arrays[f"blocks.{i}.state.{name}"] = array
        return arrays

    def import_state(self, arrays: Mapping[str, Array]) -> RWKV7Cache:
        return self._cache([arrays])

    def _cache(self, rows: Sequence[Mapping[str, Array]]) -> RWKV7Cache:
        """A cache of as many rows."""

        def stacked(i: int, name: str) -> torch.Tensor:
            return torch.from_numpy(np.stack([np.array(row[f"blocks.{i}.state.{name}"], np.float32) for row in rows]))

        layers = range(self._config.layers)
        return RWKV7Cache(
            [stacked(i, "wkv").transpose(-1, -2).contiguous() for i in layers],
            [stacked(i, "att_x") for i in layers],
            [stacked(i, "ffn_x") for i in layers],
        )

    def _logits(self, tokens: torch.Tensor, state: RWKV7Cache, mask: torch.Tensor | None = None) -> Array:
        with torch.no_grad():
            given = self._model(tokens, past_key_values=state, attention_mask=mask, use_cache=True)
        logits: Array = given.logits.numpy()
        return logits
