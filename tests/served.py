"""An engine of this project behind the protocol of docs/protocol.md, and ways to break it.

    python served.py [--engine reference|optimized|blank] [--dtypes float32,bfloat16] [--without taps,state] [FAULT]

FAULT is one of FAULTS below; it shows in a forward of three tokens, where nothing else is said. `blank` knows no model:
its logits are zeros, and it starts at once.
"""

import argparse
import json
import os
import signal
import sys
import time
from itertools import accumulate

import numpy

FAULTS = {
    "exits-at-hello": "ends with status 3 instead of answering hello",
    "silent-at-hello": "never answers hello",
    "other-protocol": "has another version of the protocol",
    "no-dtypes": "says hello without its dtypes",
    "unknown-capability": "claims what there is not",
    "refuses-load": "has no room",
    "dies": "killed by a signal",
    "exits": "ends with status 7",
    "half-line": "writes half an answer and ends",
    "half-line-silent": "writes half an answer and no more",
    "sleeps": "never answers",
    "orphan": "ends, but leaves a child that holds its stdout",
    "garbage": "prints what is no JSON",
    "not-an-object": "answers with a list",
    "flood": "prints without end, and never a line's end",
    "two-lines": "answers twice",
    "chatters": "prints a line after its answer",
    "half-file": "writes the first half of the tensor file",
    "no-file": "writes no tensor file",
    "no-logits": "writes a file without logits",
    "nan": "one logit is NaN",
    "shape": "gives the last row of logits only",
    "tap-shape": "gives a tap with its heads merged, whatever the tokens",
    "unknown-state": "does not know the state it gave",
    "no-handle": "answers clone without a handle",
    "dies-in-apply": "ends when it is asked for group_norm",
    "wrong-once": "the first answer to bonus is wrong, the others right",
    "closes-badly": "ends with status 5 after close",
    "stays": "does not end after close",
}


class Blank:
    """Starts ten times as fast as an engine that imports torch."""

    capabilities = frozenset({"state", "snapshot"})

    def load(self, config: dict) -> None:
        self.vocab = config["vocab"]

    def close(self) -> None: ...

    def initial_state(self) -> dict:
        return {}

    def forward(self, tokens: list, state: dict, taps: dict | None = None) -> object:
        return numpy.zeros((len(tokens), self.vocab), numpy.float32)

    def export_state(self, state: dict) -> dict:
        return dict(state)

    import_state = clone = snapshot = export_state


class Server:
    """The verbs, each a method: the fields of the request in, the fields of the answer out."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.handles: dict[int, object] = {}
        self.taken = 0

    def hello(self, protocol: int) -> dict:
        self.make: type = Blank
        if self.options.engine == "reference":
            from gander.conformance.adapters.reference import Engine as Reference

            self.make = Reference
        if self.options.engine == "optimized":
            from gander.optimized import Engine as Optimized

            self.make = Optimized
        capabilities = sorted(self.make.capabilities - set(self.options.without.split(",")))
        dtypes = ["float64"] if self.options.engine == "reference" else self.options.dtypes.split(",")
        if self.options.fault == "exits-at-hello":
            os._exit(3)
        if self.options.fault == "silent-at-hello":
            time.sleep(3600)
        if self.options.fault == "unknown-capability":
            capabilities.append("tapes")
        answer = {"protocol": 1, "name": "served", "version": "1", "dtypes": dtypes, "capabilities": capabilities}
        if self.options.fault == "other-protocol":
            answer["protocol"] = 2
        if self.options.fault == "no-dtypes":
            del answer["dtypes"]
        return answer

    def load(self, model: str, dtype: str, attention: str, quantize: str, **config: float) -> dict:
        if self.options.fault == "refuses-load":
            return {"error": "no room"}
        if self.make is Blank:
            self.engine = Blank()
            self.engine.load(config)
            return {}
        from dataclasses import replace

        import torch

        from gander.checkpoint import load
        from gander.traces import DENSE, parse_attention

        torch.set_num_threads(1)
        policy = parse_attention(attention)
        choices = {} if policy == DENSE else {"attention": policy}
        choices |= {"quantize": True} if quantize == "int8" else {}
        choices |= {} if dtype == "float64" else {"dtype": dtype}
        checkpoint = load(model)
        assert vars(replace(checkpoint.config, **config)).items() >= config.items()
        self.engine = self.make(**choices)
        self.engine.load(replace(checkpoint, config=replace(checkpoint.config, **config)))
        return {}

    def initial_state(self) -> dict:
        return {"state": self.keep(self.engine.initial_state())}

    def forward(self, tokens: list, state: int, taps: list, out: str) -> dict:
        if len(tokens) == 3 and self.options.fault:
            self.misbehave(out)
        if len(tokens) == 3 and self.options.fault == "unknown-state":
            state = -1
        shown: dict = {}
        logits = self.engine.forward(tokens, self.handles[state], taps=shown if taps != ["logits"] else None)
        if len(tokens) == 3 and self.options.fault == "nan":
            logits[1, 7] = numpy.nan
        if len(tokens) == 3 and self.options.fault == "shape":
            logits = logits[-1:]
        if self.options.fault == "tap-shape" and "blocks.1.att.wkv" in shown:
            shown["blocks.1.att.wkv"] = shown["blocks.1.att.wkv"].reshape(len(tokens), -1)
        if not (len(tokens) == 3 and self.options.fault == "no-logits"):
            shown["logits"] = logits
        known = self.options.known.split(",") if self.options.known else taps
        self.write(out, {name: shown[name] for name in taps if name in shown and name in known})
        if len(tokens) == 3 and self.options.fault == "half-file":
            os.truncate(out, os.path.getsize(out) // 2)
        if len(tokens) == 3 and self.options.fault == "no-file":
            os.unlink(out)
        return {}

    def forward_batch(self, tokens: list, lengths: list, states: list, taps: list, out: str) -> dict:
        ends = list(accumulate(lengths))
        rows = [tokens[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        shown: list[dict] = [{} for _ in rows]
        options = {} if taps == ["logits"] else {"taps": shown}
        logits = self.engine.forward_batch(rows, [self.handles[state] for state in states], **options)
        for row, of_it in zip(shown, logits, strict=True):
            row["logits"] = of_it
        self.write(out, {name: numpy.concatenate([row[name] for row in shown]) for name in taps})
        return {}

    def apply(self, op: str, out: str, **files: str) -> dict:
        if op == "group_norm" and self.options.fault == "dies-in-apply":
            os._exit(4)
        outputs = self.engine.apply(op, self.read(files["in"]))
        if op == "bonus" and self.options.fault == "wrong-once":
            self.options.fault = None
            outputs["b"] = outputs["b"] + 1
        self.write(out, outputs)
        return {}

    def export_state(self, state: int, out: str) -> dict:
        self.write(out, self.engine.export_state(self.handles[state]))
        return {}

    def import_state(self, **files: str) -> dict:
        return {"state": self.keep(self.engine.import_state(self.read(files["in"])))}

    def clone(self, state: int) -> dict:
        if self.options.fault == "no-handle":
            return {"state": "seven"}
        return {"state": self.keep(self.engine.clone(self.handles[state]))}

    def reset(self, state: int) -> dict:
        self.engine.reset(self.handles[state])
        return {}

    def snapshot(self, state: int) -> dict:
        return {"snapshot": self.keep(self.engine.snapshot(self.handles[state]))}

    def rollback(self, state: int, snapshot: int) -> dict:
        self.engine.rollback(self.handles[state], self.handles[snapshot])
        return {}

    def release(self, handles: list) -> dict:
        for handle in handles:
            del self.handles[handle]
        return {}

    def set_chunk(self, tokens: int) -> dict:
        self.engine.set_chunk(tokens or None)
        return {}

    def set_threads(self, threads: int) -> dict:
        self.engine.set_threads(threads or None)
        return {}

    def close(self) -> dict:
        self.engine.close()
        return {}

    def keep(self, state: object) -> int:
        self.taken += 1
        self.handles[self.taken] = state
        return self.taken

    def read(self, path: str) -> dict:
        from safetensors.numpy import load_file

        return {name: array.astype(numpy.int64) if array.dtype.kind == "i" else array
                for name, array in load_file(path).items()}  # fmt: skip

    def write(self, path: str, arrays: dict) -> None:
        from safetensors.numpy import save_file

        save_file({name: numpy.ascontiguousarray(array) for name, array in arrays.items()}, path)

    def misbehave(self, out: str) -> None:
        """What is wrong whatever the answer would be."""

        def say(text: str) -> None:
            sys.stdout.write(text)
            sys.stdout.flush()

        match self.options.fault:
            case "dies":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "exits":
                os._exit(7)
            case "half-line":
                say('{"sta')
                os._exit(0)
            case "half-line-silent":
                say('{"sta')
                time.sleep(3600)
            case "sleeps":
                time.sleep(3600)
            case "orphan":
                if os.fork() == 0:
                    time.sleep(3600)
                os._exit(9)
            case "garbage":
                say("loading the model ...\n")
            case "not-an-object":
                say("[1, 2]\n")
            case "flood":
                while True:
                    say("x" * 4096)
            case "two-lines":
                say("{}\n")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", default="optimized")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--without", default="")
    parser.add_argument("--known", default="", help="the only taps that it writes")
    parser.add_argument("--tag", help="to find the process by")
    parser.add_argument("fault", nargs="?", choices=FAULTS)
    options = parser.parse_args()
    server = Server(options)
    print("served: ready", file=sys.stderr)
    for line in sys.stdin:
        request = json.loads(line)
        verb = request.pop("verb")
        try:
            answer = getattr(server, verb)(**request)
        except Exception as error:  # a refusal: the next request may be a better one
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
        if options.fault == "chatters" and verb == "forward":
            print("that went well", flush=True)
        if verb == "close":
            if options.fault == "stays":
                time.sleep(3600)
            return 5 if options.fault == "closes-badly" else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
