"""The ONNX graph of a step (`gander convert --to onnx`) as an engine, in onnxruntime on the CPU."""

import tempfile
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...checkpoint import Checkpoint, write_onnx
from ...checkpoint.onnx import AFTER, TOKEN
from ...errors import needs
from ..engine import Array, Arrays
from ..runner import threads_for

__all__ = ["Engine"]

with needs("engine 'onnx'", "onnx"), needs("engine 'onnx'", "onnxruntime"):
    import onnx
    import onnxruntime

WARNING = 3  # onnxruntime's levels of severity: only errors are shown


class Engine:
    """onnxruntime, a token at a time. Calls that ask for no taps run the graph as it is written."""

    name = "onnx"
    dtype = "float32"
    capabilities = frozenset({"taps", "state", "snapshot", "threads"})

    _open: dict[bool, Any]

    def load(self, checkpoint: Checkpoint) -> None:
        self._config = checkpoint.config
        self._own_threads = threads_for(checkpoint)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.onnx")
            write_onnx(checkpoint, path)
            self._graph = path.read_bytes()
        self.set_threads(None)

    def close(self) -> None:
        self._graph = b""
        self._open = {}

    def set_threads(self, threads: int | None) -> None:
        """Can be chosen only for a new session."""
        self._threads = threads or self._own_threads
        self._open = {}

    def initial_state(self) -> Arrays:
        return {tensor.name: np.zeros(tensor.shape(self._config.dims), np.float32) for tensor in self._config.state}

    def forward(self, tokens: Sequence[int], state: Arrays, *, taps: MutableMapping[str, Array] | None = None) -> Array:
        session = self._session(taps is not None)
        names = [each.name for each in session.get_outputs()]
        steps = []
        for token in tokens:
            given = session.run(names, {TOKEN: np.array(token, np.int64), **state})
            steps.append(dict(zip(names, given, strict=True)))
            state.update({name: steps[-1].pop(AFTER + name) for name in state})
        shown = {name: np.stack([step[name] for step in steps]) for name in steps[0]}
        if taps is not None:
            taps.update(shown)
        return shown["logits"]

    def export_state(self, state: Arrays) -> Arrays:
        return {name: value.copy() for name, value in state.items()}

    def import_state(self, arrays: Mapping[str, Array]) -> Arrays:
        return {tensor.name: np.array(arrays[tensor.name], np.float32) for tensor in self._config.state}

    clone = snapshot = export_state

    def reset(self, state: Arrays) -> None:
        state.update(self.initial_state())

    def rollback(self, state: Arrays, snapshot: Arrays) -> None:
        state.update(self.export_state(snapshot))

    def _session(self, with_taps: bool) -> Any:
        """With taps or without: one at a time, since each holds the weights a few times over."""
        if with_taps not in self._open:
            self._open.clear()
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = self._threads
            options.log_severity_level = WARNING
            graph = self._with_taps() if with_taps else self._graph
            self._open[with_taps] = onnxruntime.InferenceSession(graph, options, ["CPUExecutionProvider"])
        return self._open[with_taps]

    def _with_taps(self) -> bytes:
        """The graph with every tap among its outputs."""
        model = onnx.load_from_string(self._graph)
        there = {each.name for each in model.graph.output}
        for tap in self._config.taps:
            if tap.name not in there:
                shape = tap.shape({**self._config.dims, "T": 1})[1:]
                model.graph.output.append(onnx.helper.make_tensor_value_info(tap.name, onnx.TensorProto.FLOAT, shape))
        graph: bytes = model.SerializeToString()
        return graph
