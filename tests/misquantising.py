"""Quantised engines that are wrong in one way each: the fast engine, and the fault that its name tells."""

from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import torch

from gander.optimized import Engine as Optimized
from gander.optimized.int8 import Int8


def scale_of(x):
    return x.abs().amax(1, keepdim=True) / 127


def guarded(codes, scale):
    """Codes, and each row's scale (rows), zero where the row is."""
    scale = scale.expand(len(codes), 1)
    return torch.where(scale > 0, codes, 0.0), scale[:, 0]


class Slow(Optimized):
    """The scheme in plain torch, with its parts open to faults; right as it stands."""

    def __init__(self, **options):
        super().__init__(**{"quantize": True, "compiled": False, **options})  # the loops hold no fault

    def codes(self, x):
        scale = scale_of(x)
        scale = torch.where(scale < 2.0**-126, 0, scale)
        return guarded((x / scale).round(), scale)

    def of_weights(self, x):
        return self.codes(x)

    def of_activations(self, x):
        codes, scale = self.codes(x)
        finite = x.isfinite().all(1)
        return torch.where(finite[:, None], codes, 0), torch.where(finite, scale, torch.nan)

    def total(self, x, weight):
        return x.double() @ weight.double().T

    def product(self, x, weight, sums=None):
        codes, scale = self.of_activations(x.float())
        total = self.total(codes, torch.from_numpy(weight.codes))
        if sums is not None:
            sums[:] = total.numpy()
        return (total.float() * (scale[:, None] * torch.from_numpy(weight.scale))).to(x.dtype)

    def load(self, checkpoint):
        with self.patched():
            super().load(checkpoint)

    def forward(self, tokens, state, *, taps=None):
        with self.patched():
            return super().forward(tokens, state, taps=taps)

    def apply(self, op, inputs):
        with self.patched():
            return super().apply(op, inputs)

    @contextmanager
    def patched(self):
        def arrays(quantise):
            return lambda x: Int8(*(value.numpy() for value in quantise(x.float())))

        rows = arrays(self.of_weights)
        names = {"quantise_rows": rows, "quantise_vector": arrays(self.of_activations), "linear": self.product}
        with patch.multiple("gander.optimized.int8", **names), patch("gander.optimized.weights.quantise_rows", rows):
            yield


class HalfAway(Slow):
    def codes(self, x):
        scale = torch.where(scale_of(x) < 2.0**-126, 0, scale_of(x))
        ratio = (x / scale).double()
        return guarded((ratio.abs() + 0.5).floor() * ratio.sign(), scale)


class Truncates(Slow):
    def codes(self, x):
        return guarded((x / scale_of(x)).trunc(), scale_of(x))


class Reciprocal(Slow):
    def codes(self, x):
        scale = torch.where(scale_of(x) < 2.0**-126, 0, scale_of(x))
        return guarded((x * (1 / scale)).round(), scale)


class PerTensor(Slow):
    def of_weights(self, x):
        scale = scale_of(x).amax().view(1, 1)
        return guarded((x / scale).round(), scale)


class SharedActivationScale(Slow):
    """One for the call: decode is right, prefill is not."""

    def of_activations(self, x):
        scale = scale_of(x).amax().view(1, 1)
        return guarded((x / scale).round(), scale)


class MinusOneTwentyEight(Slow):
    def codes(self, x):
        scale = x.abs().amax(1, keepdim=True) / 128
        return guarded((x / scale).round().clamp(-128, 127), scale)


class SevenBits(Slow):
    """What codes up to 63 cost, in a model that is otherwise right."""

    def of_weights(self, x):
        scale = x.abs().amax(1, keepdim=True) / 63
        return guarded((x / scale).round(), scale)


class PerColumn(Slow):
    """A scale for each input channel: its weights cannot be codes times row scales, so they are kept as they are."""

    def of_weights(self, x):
        scale = x.abs().amax(0, keepdim=True) / 127
        return torch.where(scale > 0, (x / scale).round(), 0), torch.ones(len(x))

    def load(self, checkpoint):
        Optimized.load(self, checkpoint)


class NoGuard(Slow):
    """0 / 0 in a row of zeros."""

    def codes(self, x):
        return (x / scale_of(x)).round(), scale_of(x)[:, 0]


class ScaleOne(Slow):
    """Where a row is zero: as good as 0."""

    def of_weights(self, x):
        codes, scale = super().of_weights(x)
        return codes, torch.where(scale > 0, scale, 1)


class FloatActivations(Slow):
    """Weights are widened again, and multiplied by what was never quantised."""

    def product(self, x, weight, sums=None):
        codes, scale = (torch.from_numpy(array).double() for array in weight)
        y = x.double() @ (codes * scale[:, None]).T
        if sums is not None:
            sums[:] = 0
        return y.to(x.dtype)


class NotQuantised(Optimized):
    """`quantize` is taken, and forgotten."""

    def __init__(self, *, quantize):
        super().__init__()


class SumsOf16Bits(Slow):
    def total(self, x, weight):
        return super().total(x, weight).clamp(-32768, 32767)


class SumsOfFloat32(Slow):
    def total(self, x, weight):
        return super().total(x, weight).float()


class SwallowsNan(Slow):
    def of_activations(self, x):
        return super().of_activations(x.nan_to_num())


class QuantisesLora(Slow):
    def load(self, checkpoint):
        super().load(
            replace(checkpoint, tensors={name: self.rounded(name, t) for name, t in checkpoint.tensors.items()})
        )

    def rounded(self, name, tensor):
        if name.split(".")[-1] in ("w1", "w2", "a1", "a2", "v1", "v2", "g1", "g2"):
            codes, scale = self.codes(tensor.float())
            return codes * scale[:, None]
        return tensor


class QuantisesEmbedding(QuantisesLora):
    def rounded(self, name, tensor):
        return super().rounded("w1", tensor) if name == "emb.weight" else tensor


class GivesNoSums(Slow):
    def apply(self, op, inputs):
        return {name: value for name, value in super().apply(op, inputs).items() if name != "sums"}


class CodesAsText(Slow):
    def apply(self, op, inputs):
        return {name: value.astype(str) for name, value in super().apply(op, inputs).items()}


class NoInt8(Slow):
    capabilities = Optimized.capabilities - {"int8"}


class ShowsLess(Slow):
    """In a short call, one tap less."""

    def forward(self, tokens, state, *, taps=None):
        logits = super().forward(tokens, state, taps=taps)
        if taps is not None and len(tokens) < 7:
            del taps["blocks.0.att.xk"]
        return logits
