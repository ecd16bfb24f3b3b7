"""Engines that are wrong in one way each: the fast engine, and the fault that its name tells."""

from dataclasses import replace

import numpy as np

from gander.optimized import Engine as Optimized


class Right(Optimized):
    name = "right"


class Raises(Optimized):
    def forward(self, tokens, state, *, taps=None):
        if len(tokens) == 3:
            raise RuntimeError("three is too many")
        return super().forward(tokens, state, taps=taps)


class RaisesOnLoad(Optimized):
    def load(self, checkpoint):
        raise MemoryError("no room")


class RaisesWhenMade(Optimized):
    def __init__(self):
        raise OSError("no such device")


class WrongShape(Optimized):
    def forward(self, tokens, state, *, taps=None):
        return super().forward(tokens, state, taps=taps)[-1]


class LastRowOnly(Optimized):
    def forward(self, tokens, state, *, taps=None):
        return super().forward(tokens, state, taps=taps)[-1:]


class NotAnArray(Optimized):
    def forward(self, tokens, state, *, taps=None):
        return super().forward(tokens, state, taps=taps).tolist()


class NanLogits(Optimized):
    def forward(self, tokens, state, *, taps=None):
        logits = super().forward(tokens, state, taps=taps)
        if len(tokens) > 5:
            logits[5, 7] = np.nan
        return logits


class NanTap(Optimized):
    def forward(self, tokens, state, *, taps=None):
        logits = super().forward(tokens, state, taps=taps)
        if taps is not None:
            taps["blocks.1.att.kk"][0, 1, 3] = np.nan
        return logits


class TapMissing(Optimized):
    def forward(self, tokens, state, *, taps=None):
        logits = super().forward(tokens, state, taps=taps)
        if taps is not None:
            del taps["blocks.2.att.norm"]
        return logits


class TapOfWrongShape(Optimized):
    def forward(self, tokens, state, *, taps=None):
        logits = super().forward(tokens, state, taps=taps)
        if taps is not None:
            taps["blocks.2.att.wkv"] = taps["blocks.2.att.wkv"].reshape(len(tokens), -1)
        return logits


class TapShared(Optimized):
    """A captured graph dumps all layers identical: each layer's tap is the last layer's."""

    def forward(self, tokens, state, *, taps=None):
        logits = super().forward(tokens, state, taps=taps)
        if taps is not None:
            for i in range(3):
                taps[f"blocks.{i}.att.g"] = taps["blocks.3.att.g"]
        return logits


class StateMissing(Optimized):
    def export_state(self, state):
        arrays = super().export_state(state)
        del arrays["blocks.1.state.wkv"]
        return arrays


class StateTransposed(Optimized):
    """Both ways, so that export after import is the identity."""

    def export_state(self, state):
        return {n: a.swapaxes(-1, -2).copy() if a.ndim == 3 else a for n, a in super().export_state(state).items()}

    def import_state(self, arrays):
        return super().import_state({n: a.swapaxes(-1, -2) if a.ndim == 3 else a for n, a in arrays.items()})


class StateIgnored(Optimized):
    def import_state(self, arrays):
        return self.initial_state()


class Forgetful(Optimized):
    """Every call starts from zeros."""

    def forward(self, tokens, state, *, taps=None):
        self.reset(state)
        return super().forward(tokens, state, taps=taps)


class CloneShares(Optimized):
    def clone(self, state):
        return state


class SnapshotShares(Optimized):
    def snapshot(self, state):
        return state


class RollbackOneShort(Optimized):
    def forward(self, tokens, state, *, taps=None):
        self.before = state.clone()
        return super().forward(tokens, state, taps=taps)

    def rollback(self, state, snapshot):
        state.assign(self.before)


class ResetForgetsShift(Optimized):
    def reset(self, state):
        state.wkv.zero_()


class BatchShares(Optimized):
    """The last row's logits are written over the first's."""

    def forward_batch(self, rows, states):
        logits = super().forward_batch(rows, states)
        logits[0][:1] = logits[-1][:1]
        return logits


class BatchPads(Optimized):
    """Padding enters the state of shorter rows."""

    def forward_batch(self, rows, states):
        longest = max(map(len, rows))
        padded = [list(row) + [0] * (longest - len(row)) for row in rows]
        return [logits[: len(row)] for row, logits in zip(rows, super().forward_batch(padded, states), strict=True)]


class LeaksBetweenCalls(Optimized):
    """A scratch buffer keeps something of the run before."""

    leak = 0.0

    def forward(self, tokens, state, *, taps=None):
        logits = super().forward(tokens, state, taps=taps) + self.leak
        self.leak = 1e-7 * float(abs(logits).max())
        return logits


class ChunkBoundary(Optimized):
    """Chunks of seven lose the state's first row."""

    size = None

    def set_chunk(self, tokens):
        super().set_chunk(tokens)
        self.size = tokens

    def forward(self, tokens, state, *, taps=None):
        logits = super().forward(tokens, state, taps=taps)
        if self.size == 7:
            state.wkv[:, :, :, 0] = 0
        return logits


class WrongOp(Optimized):
    def apply(self, op, inputs):
        outputs = super().apply(op, inputs)
        if op == "l2norm":
            z = inputs["k"] * inputs["k_k"]
            outputs["kk"] = z / np.sqrt((z * z).sum(-1, keepdims=True) + 1e-6)
        return outputs


class NoTaps(Optimized):
    capabilities = Optimized.capabilities - {"taps"}


class NoApply(Optimized):
    capabilities = Optimized.capabilities - {"apply"}


class UnknownCapability(Optimized):
    capabilities = Optimized.capabilities | {"tapes"}


class UnknownDtype(Optimized):
    def __init__(self):
        super().__init__()
        self.dtype = "fp32"


class RaisesOnClose(Optimized):
    def close(self):
        raise OSError("cannot unmap")


class NotAnEngine:
    pass


class NanAtOnce(Optimized):
    """0 / 0 in the norm of a zero key, from the first token on."""

    def forward(self, tokens, state, *, taps=None):
        logits = super().forward(tokens, state, taps=taps)
        if taps is not None:
            taps["blocks.1.att.kk"][:] = np.nan
        return logits * np.nan


class RoundsWeights(Optimized):
    """To bfloat16, when it loads: no golden weight shows it."""

    def load(self, checkpoint):
        rounded = {name: tensor.bfloat16().float() for name, tensor in checkpoint.tensors.items()}
        super().load(replace(checkpoint, tensors=rounded))


class ClipsWeights(Optimized):
    """At 50, when it loads: no golden weight is beyond."""

    def load(self, checkpoint):
        clipped = {name: tensor.clamp(-50, 50) for name, tensor in checkpoint.tensors.items()}
        super().load(replace(checkpoint, tensors=clipped))


class OffByAThousandth(Optimized):
    """Every tap, logit and state is a thousandth too large."""

    def forward(self, tokens, state, *, taps=None):
        logits = super().forward(tokens, state, taps=taps)
        for name in taps or ():
            taps[name] = taps[name] * np.float32(1.001)
        return logits * np.float32(1.001)

    def export_state(self, state):
        return {name: value * np.float32(1.001) for name, value in super().export_state(state).items()}


class SwapsTheBestTwo(Optimized):
    def forward(self, tokens, state, *, taps=None):
        logits = super().forward(tokens, state, taps=taps)
        for row in logits:
            second, first = np.argsort(row)[-2:]
            row[[first, second]] = row[[second, first]]
        return logits


class NotCausal(Optimized):
    """Right, but where the last token is the first one again: what only the law of causality asks for."""

    def apply(self, op, inputs):
        outputs = super().apply(op, inputs)
        if op == "token_shift" and len(inputs["x"]) > 1 and (inputs["x"][-1] == inputs["x"][0]).all():
            outputs["y"][0] += 1
        return outputs


class WrongForFastDecay(Optimized):
    def apply(self, op, inputs):
        outputs = super().apply(op, inputs)
        if op == "wkv7" and inputs["w"].max() < 0.546:
            outputs["y"] *= 2
        return outputs


class NanForLongTexts(Optimized):
    def apply(self, op, inputs):
        outputs = super().apply(op, inputs)
        if op == "wkv7" and len(inputs["w"]) > 200:
            outputs["y"][200:] = np.nan
        return outputs


class WrongForZeroKeys(Optimized):
    def apply(self, op, inputs):
        outputs = super().apply(op, inputs)
        if op == "wkv7" and not inputs["kk"][:, 0].any():
            outputs["y"][:, 0] *= 2
        return outputs


class WrongFromToken100(Optimized):
    def forward(self, tokens, state, *, taps=None):
        logits = super().forward(tokens, state, taps=taps)
        if taps is not None:
            taps["ln_out"][100:] *= 2
        return logits


class WrongAt33(Optimized):
    def forward(self, tokens, state, *, taps=None):
        return super().forward(tokens, state, taps=taps) * (1 + (len(tokens) == 33))


class WrongBeyond200(Optimized):
    def forward(self, tokens, state, *, taps=None):
        return super().forward(tokens, state, taps=taps) * (1 + (len(tokens) > 200))


class StateRounded(Optimized):
    """An imported state goes through bfloat16."""

    def import_state(self, arrays):
        state = super().import_state(arrays)
        state.wkv.copy_(state.wkv.bfloat16().float())
        return state


class ExportIsAView(Optimized):
    def export_state(self, state):
        return super().export_state(state) | {"blocks.0.state.att_x": state.att_x[0, 0].numpy()}


class BatchLastRow(Optimized):
    def forward_batch(self, rows, states):
        logits = super().forward_batch(rows, states)
        if len(rows) > 1:
            logits[-1] *= 2
        return logits


class BatchSwapsStates(Optimized):
    """Rows as long as each other end in each other's states."""

    def forward_batch(self, rows, states):
        logits = super().forward_batch(rows, states)
        if len(rows) > 1 and len({len(row) for row in rows}) == 1:
            first = states[0].clone()
            states[0].assign(states[1])
            states[1].assign(first)
        return logits


class BatchDecode(Optimized):
    """One token a row takes another way, which forgets the state."""

    def forward_batch(self, rows, states):
        if len(rows) > 1 and all(len(row) == 1 for row in rows):
            for state in states:
                state.wkv.zero_()
        return super().forward_batch(rows, states)


class BatchOfOne(Optimized):
    def forward_batch(self, rows, states):
        if len(rows) == 1:
            self.reset(states[0])
        return super().forward_batch(rows, states)


class BatchSharesPrefix(Optimized):
    """A prefix cache that looks at the tokens alone: the same tokens, the same state."""

    def forward_batch(self, rows, states):
        logits = super().forward_batch(rows, states)
        for i in range(1, len(rows)):
            if tuple(rows[i]) == tuple(rows[0]):
                states[i].assign(states[0])
        return logits


class BatchDropsARow(Optimized):
    def forward_batch(self, rows, states):
        logits = super().forward_batch(rows, states)
        return logits[:-1] if len(rows) > 3 else logits


class LeaksIntoState(Optimized):
    """Each run leaves a little of itself in the next one's state, not in its logits."""

    leak = 0.0

    def forward(self, tokens, state, *, taps=None):
        logits = super().forward(tokens, state, taps=taps)
        state.wkv += self.leak
        self.leak += 1e-6
        return logits


class LeaksAfterAnotherText(Optimized):
    """Only a different text in between shows it."""

    before = None
    leak = 0.0

    def forward(self, tokens, state, *, taps=None):
        if len(tokens) > 1:
            if self.before is not None and self.before != tuple(tokens):
                self.leak = 1e-6
            self.before = tuple(tokens)
        return super().forward(tokens, state, taps=taps) + np.float32(self.leak)


class CloneFollows(Optimized):
    """What the original does next shows in its clone."""

    pairs = ()

    def clone(self, state):
        copy = super().clone(state)
        self.pairs = ((state, copy),)
        return copy

    def forward(self, tokens, state, *, taps=None):
        logits = super().forward(tokens, state, taps=taps)
        for original, copy in self.pairs:
            if state is original:
                copy.assign(original)
        return logits


class CloneLeads(CloneFollows):
    """What a clone does shows in its original."""

    def clone(self, state):
        copy = super().clone(state)
        self.pairs = ((copy, state),)
        return copy


class WrongWithFourThreads(Optimized):
    threads = None

    def set_threads(self, threads):
        super().set_threads(threads)
        self.threads = threads

    def forward(self, tokens, state, *, taps=None):
        return super().forward(tokens, state, taps=taps) * (1 + (self.threads == 4))
