"""Which known mistake explains greedy tokens, when they are all that an engine shows."""

from collections.abc import Callable, Iterable

import numpy as np

from ..checkpoint import Checkpoint
from ..errors import InputError
from ..golden import start_of
from ..traces import Trace, parse_attention
from .diagnosis import Candidate, Diagnosis, possible
from .mode import Mode
from .mutants import Mutant, Port

__all__ = ["diagnose_choices"]


def diagnose_choices(
    trace: Trace,
    checkpoint: Checkpoint,
    mutants: Iterable[Mutant],
    prompt: int,
    *,
    progress: Callable[[str], None] = lambda text: None,
) -> Diagnosis:
    """`trace` has `prompt` tokens that were given and others that were chosen, each the likeliest.

    A candidate's `left` is the number of tokens that it would have chosen otherwise. Few tokens tell few mutants apart.
    """
    if not 1 <= prompt < len(trace.tokens):
        raise InputError(
            f"a prompt of {prompt} tokens", expected=f"1 to {len(trace.tokens) - 1}: the trace has {len(trace.tokens)}"
        )
    weights = checkpoint.weights()
    mode = Mode(parse_attention(trace.attention), trace.quantized == "int8")

    def wrong(mutant: Mutant | None) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        port = Port(mutant, dtype="float64", **mode.options)
        port.load(checkpoint, weights)
        state = port.initial_state() if trace.start == "zero" else port.import_state(start_of(port.config, trace.start))
        logits = [port.forward(trace.tokens[:prompt], state)[-1:]]
        logits += [port.forward([token], state) for token in trace.tokens[prompt:-1]]
        return np.concatenate(logits).argmax(axis=-1) != trace.tokens[prompt:]

    progress("the reference")
    base = wrong(None)
    if not base.any():
        return Diagnosis(None, (), (), agrees=True)
    candidates = []
    for mutant in mutants:
        if not possible(mutant, mode):
            continue
        progress(mutant.id)
        try:
            with np.errstate(all="ignore"):
                left = int(wrong(mutant).sum())
        except Exception:  # a fault may be one that this model's shapes do not allow
            continue
        candidates.append(Candidate((mutant,), 1 - left / int(base.sum()), left, left))
    candidates.sort(key=lambda candidate: candidate.score)
    exact = [candidate for candidate in candidates if not candidate.left]
    alike = tuple(candidate.mutants[0] for candidate in exact[1:])
    first = prompt + int(np.argmax(base))
    return Diagnosis(exact[0] if exact else None, alike, tuple(candidates), False, "token", first, None, alone=False)
