"""Snapshots, clones and resets that are not what they say, and runs that do not repeat."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from io import BytesIO
from itertools import count
from typing import Any

import numpy as np

from ..engine import Array, Arrays
from .mutant import Mutant
from .port import Port
from .state import NAMED, PARTS, aside, copied, leaving, of

__all__ = ["MUTANTS"]

RIGHT = {
    "snapshot": "a snapshot stays what it is, whatever is run afterwards",
    "rollback": "after rollback the state is what it was at the snapshot, whole",
    "clone": "a clone and its original go separate ways",
    "reset": "after reset the state is a new one, whole",
    "new": "two states share nothing",
    "repeat": "the same run gives the same bits",
}
Taps = MutableMapping[str, Array] | None


def itself(port: Port, state: Arrays) -> Arrays:
    return state


def forgets(verb: str, part: str) -> Mapping[str, Callable[..., Any]]:
    """Of rollback or reset: that part stays as it is."""

    def keeping(port: Port, state: Arrays, *snapshot: Arrays) -> None:
        stays = {name: state[name] for kind in ("blocks", "moba") for name in of(part, state, kind)}
        getattr(Port, verb)(port, state, *snapshot)
        state.update(stays)

    return {verb: keeping}


def first_block_only(port: Port, state: Arrays) -> None:
    zero = Port.initial_state(port)
    state.update({name: value for name, value in zero.items() if name.startswith("blocks.0.")})


# --- rollback by what was run since


def remembering(port: Port, tokens: Sequence[int], state: Arrays, *, taps: Taps = None) -> Array:
    kept = vars(port)
    kept["before"] = dict(state)
    kept["since"] = [*kept.get("since", ()), *tokens]
    return Port.forward(port, tokens, state, taps=taps)


def marking(port: Port, state: Arrays) -> Arrays:
    vars(port)["since"] = []
    return copied(port, state)


def one_short(port: Port, state: Arrays, snapshot: Arrays) -> None:
    """One of the tokens to be taken back stays in."""
    Port.rollback(port, state, snapshot)
    since = vars(port).get("since", [])
    if since:
        aside(port, since[:1], state)
    vars(port)["since"] = []


def last_call(port: Port, state: Arrays, snapshot: Arrays) -> None:
    state.update(vars(port).get("before", snapshot))


# --- shared memory


def sharing(part: str) -> Mapping[str, Callable[..., Any]]:
    """A clone has its original's buffers of that part: whoever runs writes for both."""

    def clone(port: Port, state: Arrays) -> Arrays:
        copy = copied(port, state)
        vars(port)["pair"] = (state, copy)
        return copy

    def forward(port: Port, tokens: Sequence[int], state: Arrays, *, taps: Taps = None) -> Array:
        logits = Port.forward(port, tokens, state, taps=taps)
        pair = vars(port).get("pair", ())
        if any(state is each for each in pair):
            for each in pair:
                each.update({name: state[name] for name in of(part, state)})
        return logits

    return {"clone": clone, "forward": forward}


def snapshot_follows(port: Port, tokens: Sequence[int], state: Arrays, *, taps: Taps = None) -> Array:
    logits = Port.forward(port, tokens, state, taps=taps)
    for owner, taken in vars(port).get("taken_of", ()):
        if owner is state:
            taken.update({name: state[name] for name in of("wkv", state)})
    return logits


def shallow_snapshot(port: Port, state: Arrays) -> Arrays:
    """S is the same memory, the small parts are copies."""
    taken = copied(port, state)
    vars(port)["taken_of"] = [(state, taken)]
    return taken


def the_one_state(port: Port) -> Arrays:
    """There is one buffer, zeroed for whoever asks."""
    one: Arrays = vars(port).setdefault("one", {})
    one.update(Port.initial_state(port))
    return one


# --- runs that do not repeat


def leaking(port: Port, tokens: Sequence[int], state: Arrays, *, taps: Taps = None) -> Array:
    """A scratch buffer keeps something of the run before."""
    logits = Port.forward(port, tokens, state, taps=taps)
    leak = vars(port).get("leak", 0.0)
    vars(port)["leak"] = 1e-3 * float(logits[-1, 0])
    return np.asarray(logits + logits.dtype.type(leak))


def in_another_order() -> Callable[[Array, Array], Array]:
    """Sums are added in another order each time, as threads that race for them do."""
    calls = count()

    def linear(x: Array, weight: Array) -> Array:
        order = np.random.default_rng(next(calls)).permutation(x.shape[-1])
        return x[..., order] @ weight[:, order].T

    return linear


# --- right, in another way


def as_bytes(port: Port, state: Arrays) -> bytes:
    file = BytesIO()
    np.savez(file, allow_pickle=False, **state)
    return file.getvalue()


def from_bytes(port: Port, state: Arrays, snapshot: bytes) -> None:
    with np.load(BytesIO(snapshot)) as arrays:
        state.update({name: arrays[name] for name in arrays})


Text = tuple[Arrays, Arrays, list[int]]  # a state, what it was when its text began, and the tokens since


def texts(port: Port) -> dict[int, Text]:
    """By the state's id, which stays its own as long as it is in here."""
    kept: dict[int, Text] = vars(port).setdefault("texts", {})
    return kept


def writing_down(port: Port, tokens: Sequence[int], state: Arrays, *, taps: Taps = None) -> Array:
    _, start, before = texts(port).get(id(state), (state, dict(state), []))
    texts(port)[id(state)] = state, start, [*before, *tokens]
    return Port.forward(port, tokens, state, taps=taps)


def as_tokens(port: Port, state: Arrays) -> tuple[Arrays, list[int]]:
    _, start, tokens = texts(port).get(id(state), (state, dict(state), []))
    return dict(start), list(tokens)


def run_again(port: Port, state: Arrays, snapshot: tuple[Arrays, list[int]]) -> None:
    start, tokens = snapshot
    state.update(start)
    if tokens:
        aside(port, tokens, state)
    texts(port)[id(state)] = state, dict(start), list(tokens)


def forgetting(port: Port, state: Arrays) -> None:
    Port.reset(port, state)
    texts(port).pop(id(state), None)


def every_part() -> Iterator[Mutant]:
    for part in PARTS:
        for verb, fault in (("rollback", "is not rolled back"), ("reset", "is not reset")):
            yield Mutant(f"{verb}.{part}_stays", f"{NAMED[part]} {fault}", RIGHT[verb], methods=forgets(verb, part))
        yield Mutant(
            f"clone.{part}_shared",
            f"a clone and its original share {NAMED[part]}",
            RIGHT["clone"],
            methods=sharing(part),
        )


MUTANTS: tuple[Mutant, ...] = (
    *every_part(),
    Mutant("snapshot.is_the_state", "a snapshot is no copy", RIGHT["snapshot"], methods={"snapshot": itself}),
    Mutant(
        "snapshot.is_shallow",
        "a snapshot shares S with the state, and copies the rest",
        RIGHT["snapshot"],
        methods={"snapshot": shallow_snapshot, "forward": snapshot_follows},
    ),
    Mutant(
        "rollback.one_token_short",
        "of the tokens to be taken back the first stays in",
        RIGHT["rollback"],
        methods={"forward": remembering, "snapshot": marking, "rollback": one_short},
        seen="Hakureirm/rwkv-sglang F0077",
    ),
    Mutant(
        "rollback.last_call_only",
        "only the last call is taken back",
        RIGHT["rollback"],
        methods={"forward": remembering, "rollback": last_call},
        seen="Hakureirm/rwkv-sglang F0077",
    ),
    Mutant(
        "rollback.does_nothing",
        "rollback leaves a recurrent state as it is",
        RIGHT["rollback"],
        methods={"rollback": lambda port, state, snapshot: None},
        seen="ggml-org/llama.cpp#16382",
    ),
    Mutant(
        "rollback.cache_stays",
        "the attention's cache keeps the tokens that were taken back",
        RIGHT["rollback"],
        methods={
            "rollback": lambda port, state, snapshot: state.update(
                {name: value for name, value in snapshot.items() if not name.endswith((".k", ".v"))}
            )
        },
        model="golden:hybrid",
    ),
    Mutant("clone.is_the_state", "a clone is no copy", RIGHT["clone"], methods={"clone": itself}),
    Mutant("reset.first_block_only", "only block 0 is reset", RIGHT["reset"], methods={"reset": first_block_only}),
    Mutant(
        "reset.does_nothing",
        "a state is handed to the next text as it is",
        RIGHT["reset"],
        methods={"reset": lambda port, state: None},
        seen="josStorer/RWKV-Runner#441",
    ),
    Mutant(
        "reset.cache_stays",
        "the attention's cache is not emptied",
        RIGHT["reset"],
        methods={
            "reset": lambda port, state: state.update(
                {name: value for name, value in port.initial_state().items() if not name.endswith((".k", ".v"))}
            )
        },
        model="golden:hybrid",
    ),
    Mutant(
        "new.one_for_all",
        "every new state is the same memory",
        RIGHT["new"],
        methods={"initial_state": the_one_state},
        seen="sgl-project/sglang#30115",
    ),
    Mutant(
        "new.import_of_the_last",
        "the state that was imported is what the last run left",
        RIGHT["new"],
        methods={
            "piece": leaving,
            "import_state": lambda port, arrays: dict(vars(port).get("kept") or Port.import_state(port, arrays)),
        },
        seen="cryscan/web-rwkv:2b60c4c",
    ),
    Mutant(
        "repeat.leak",
        "something of each run stays in a scratch buffer",
        RIGHT["repeat"],
        methods={"forward": leaking},
        seen="langchain-ai/langchain#2565",
    ),
    Mutant(
        "repeat.order_of_sums",
        "sums are added in an order that changes from run to run",
        RIGHT["repeat"],
        formulas={"linear": in_another_order()},
        rounding=True,
        seen="yuyi2439/rwkv-tl:b2de0f7",
    ),
    # Right.
    Mutant(
        "snapshot.as_bytes",
        "a snapshot is written as a file's bytes, and read again",
        RIGHT["snapshot"],
        methods={"snapshot": as_bytes, "rollback": from_bytes},
        same="bytes are a copy",
    ),
    Mutant(
        "snapshot.as_tokens",
        "a snapshot is the tokens so far: rollback runs them again",
        RIGHT["snapshot"],
        methods={"forward": writing_down, "snapshot": as_tokens, "rollback": run_again, "reset": forgetting},
        same="the same tokens give the same state",
    ),
)
