"""What is carried from one call to the next, done wrong."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..engine import Array, Arrays
from .mutant import Mutant
from .port import Port

__all__ = ["MUTANTS"]

RIGHT = {
    "att_x": "att_x is ln1(x) of the call's last token, block by block",
    "wkv": "wkv is S after the call's last token, (H, N, N) as [value, key]",
    "ffn_x": "ffn_x is ln2(x) of the call's last token, block by block",
    "import": "import_state: the next call goes on from the state that was given",
    "export": "export_state: copies under the canonical names, S as [value, key]",
    "initial": "before the first token the state is zero, and no key is cached",
    "cache": "an attention block caches the k and v of every token, in order, behind those it has",
    "moba.ffn_x": "an attention block's channel mix has a shift state of its own",
}
PARTS = ("att_x", "wkv", "ffn_x")
NAMED = {"att_x": "time mix's shift state", "wkv": "the recurrent state", "ffn_x": "channel mix's shift state"}

Carry = Callable[[Port, Arrays, Arrays], Arrays]
Piece = Callable[[Port, list[int], Arrays, Arrays], Array]


def of(part: str, state: Mapping[str, Array], kind: str = "blocks") -> list[str]:
    """The tensors of that part, in the order of their blocks."""
    return [name for name in state if name.startswith(f"{kind}.") and name.endswith(f".state.{part}")]


# --- handed on wrongly


def each(part: str, change: Callable[[Array, Array], Array], kind: str = "blocks") -> Carry:
    """`change` of each such tensor before and after the call."""

    def carry(port: Port, before: Arrays, after: Arrays) -> Arrays:
        return {**after, **{name: change(before[name], after[name]) for name in of(part, after, kind)}}

    return carry


def both(*changes: Carry) -> Carry:
    def carry(port: Port, before: Arrays, after: Arrays) -> Arrays:
        for change in changes:
            after = change(port, before, after)
        return after

    return carry


def lost(before: Array, after: Array) -> Array:
    return before


def zeroed(before: Array, after: Array) -> Array:
    return np.zeros_like(after)


def transposed(before: Array, after: Array) -> Array:
    return after.swapaxes(-1, -2)


def first_head(before: Array, after: Array) -> Array:
    return np.broadcast_to(after[:1], after.shape).copy()


def next_head(before: Array, after: Array) -> Array:
    return np.roll(after, 1, axis=0)


def last_call_only(before: Array, after: Array) -> Array:
    return after[len(before) :]


def twice(before: Array, after: Array) -> Array:
    return np.concatenate([after, after[len(before) :]])


def newest_first(before: Array, after: Array) -> Array:
    return np.concatenate([after[len(before) :][::-1], before])


def renamed(rename: Callable[[str], str]) -> Carry:
    """Each tensor is that of another name, where there is one."""

    def carry(port: Port, before: Arrays, after: Arrays) -> Arrays:
        return {name: after.get(rename(name), value) for name, value in after.items()}

    return carry


def swapped(one: str, other: str) -> Carry:
    names = {one: other, other: one}

    def rename(name: str) -> str:
        block, part = name.rsplit(".", 1)
        return f"{block}.{names.get(part, part)}"

    return renamed(rename)


def of_the_block_before(part: str) -> Carry:
    def rename(name: str) -> str:
        if name.startswith("blocks.") and name.endswith(part):
            return re.sub(r"\d+", lambda number: str(int(number[0]) - 1), name)
        return name

    return renamed(rename)


def shared_with_attention(port: Port, before: Arrays, after: Arrays) -> Arrays:
    """An attention block and the block before it write into one buffer."""
    order = port.config.blocks
    shared = {
        f"{order[place - 1]}.state.ffn_x": after[f"{block}.state.ffn_x"]
        for place, block in enumerate(order)
        if block.startswith("moba.")
    }
    return after | shared


def aside(port: Port, tokens: Sequence[int], state: Arrays) -> None:
    """A run of tokens that are none of the text's, padding for one: nothing is given to it, and it does not count."""
    taken, given = port.taken, port.given
    port.given = {}
    Port.forward(port, tokens, state)
    port.taken, port.given = taken, given


def of_the_first(part: str, tokens: Callable[[int], int]) -> Piece:
    """The part is what it was after so many of the call's tokens."""

    def piece(port: Port, call: list[int], state: Arrays, made: Arrays) -> Array:
        earlier, count, taken = dict(state), tokens(len(call)), port.taken
        if count:
            Port.piece(port, call[:count], earlier, {})
            port.taken = taken
        logits = Port.piece(port, call, state, made)
        state.update({name: earlier[name] for name in of(part, state)})
        return logits

    return piece


def of_the_residual_stream(part: str) -> Piece:
    """What went into the norm, not what came out."""

    def entering(port: Port, made: Arrays) -> Iterator[Array]:
        stream = made["emb"]
        for block in port.config.blocks:
            yield made[f"{block}.mid"] if part == "ffn_x" else stream
            stream = made[f"{block}.out"]

    def piece(port: Port, call: list[int], state: Arrays, made: Arrays) -> Array:
        logits = Port.piece(port, call, state, made)
        state.update(zip(of(part, state), (x[-1] for x in entering(port, made)), strict=True))
        return logits

    return piece


# --- taken in and given out wrongly


def turned(port: Port, state: Mapping[str, Array]) -> Arrays:
    """Every S transposed."""
    return {name: value.swapaxes(-1, -2).copy() if value.ndim == 3 else value for name, value in state.items()}


def turned_import(port: Port, arrays: Mapping[str, Array]) -> Arrays:
    return Port.import_state(port, turned(port, arrays))


def turned_export(port: Port, state: Arrays) -> Arrays:
    return turned(port, Port.export_state(port, state))


def copied(port: Port, state: Arrays) -> Arrays:
    """For `clone` and `snapshot`, so that a wrong export is no wrong clone too."""
    return Port.export_state(port, state)


def restored(port: Port, state: Arrays, snapshot: Arrays) -> None:
    state.update(copied(port, snapshot))


SNAPSHOTS: Mapping[str, Callable[..., Any]] = {"clone": copied, "snapshot": copied, "rollback": restored}


def ignored_import(port: Port, arrays: Mapping[str, Array]) -> Arrays:
    return port.initial_state()


def imported_but(part: str) -> Callable[[Port, Mapping[str, Array]], Arrays]:
    """That part stays zero."""

    def import_state(port: Port, arrays: Mapping[str, Array]) -> Arrays:
        zero = {name: value for name, value in port.initial_state().items() if name in of(part, arrays)}
        return Port.import_state(port, arrays) | zero

    return import_state


def first_import_again(port: Port, arrays: Mapping[str, Array]) -> Arrays:
    """A cache of buffers that does not look at what is in them."""
    kept: Arrays = vars(port).setdefault("kept", Port.import_state(port, arrays))
    return dict(kept)


def uninitialised(port: Port) -> Arrays:
    """Memory that nobody cleared."""
    return {name: np.full_like(value, 0.01) for name, value in Port.initial_state(port).items()}


def left_over(port: Port) -> Arrays:
    """What the last sequence ended with."""
    return {**Port.initial_state(port), **vars(port).get("kept", {})}


def leaving(port: Port, call: list[int], state: Arrays, made: Arrays) -> Array:
    logits = Port.piece(port, call, state, made)
    vars(port)["kept"] = dict(state)
    return logits


def left_over_cache(port: Port) -> Arrays:
    return {name: value for name, value in left_over(port).items() if name.endswith((".k", ".v"))} | {
        name: value for name, value in Port.initial_state(port).items() if not name.endswith((".k", ".v"))
    }


# --- right, in another way


def turned_inside(port: Port, call: list[int], state: Arrays, made: Arrays) -> Array:
    """S is kept as [key, value], and turned for every call."""
    upright = turned(port, state)
    logits = Port.piece(port, call, upright, made)
    state.update(turned(port, upright))
    return logits


def into_the_same_arrays(port: Port, call: list[int], state: Arrays, made: Arrays) -> Array:
    """The state's arrays are written over, as in an engine that never allocates."""
    after = dict(state)
    logits = Port.piece(port, call, after, made)
    for name, value in after.items():
        if value.shape == state[name].shape:
            state[name][...] = value
        else:
            state[name] = value
    return logits


def hand_off(id: str, fault: str, part: str, carry: Carry, seen: str = "", **more: Any) -> Mutant:
    return Mutant(f"state.{id}", fault, RIGHT[part], methods={"carry": carry}, seen=seen, **more)


def every_part() -> Iterator[Mutant]:
    seen = {"att_x": "ggml-org/llama.cpp#11445", "wkv": "rwkv-rs/rwkv7-ascend-npu:461e219", "ffn_x": "fla-org/fla#157"}
    fresh = {"wkv": "lablup/mlxcel#1220"}
    for part in PARTS:
        what, right = NAMED[part], RIGHT[part]
        yield hand_off(f"{part}_lost", f"{what} is not written back after a call", part, each(part, lost), seen[part])
        yield hand_off(
            f"{part}_zeroed", f"{what} is zero again at each call", part, each(part, zeroed), fresh.get(part, "")
        )
        yield hand_off(f"{part}_of_block_before", f"{what} is the block before's", part, of_the_block_before(part))
        yield Mutant(
            f"state.{part}_stale",
            f"{what} is one token behind",
            right,
            methods={"piece": of_the_first(part, lambda tokens: tokens - 1)},
        )
        yield Mutant(
            f"state.{part}_of_first_token",
            f"{what} is that of the call's first token, not of its last",
            right,
            methods={"piece": of_the_first(part, lambda tokens: 1)},
        )
        yield Mutant(
            f"state.{part}_not_imported",
            f"{what} of an imported state is ignored",
            RIGHT["import"],
            methods={"import_state": imported_but(part)},
        )
        if part != "wkv":
            yield Mutant(
                f"state.{part}_not_normed",
                f"{what} is the residual stream, not what came out of the norm",
                right,
                methods={"piece": of_the_residual_stream(part)},
            )


HYBRID = "golden:hybrid"
K_AND_V = both(each("k", lost, "moba"), each("v", lost, "moba"))

MUTANTS: tuple[Mutant, ...] = (
    *every_part(),
    hand_off(
        "shifts_swapped",
        "the shift states of time mix and channel mix change places",
        "att_x",
        swapped("att_x", "ffn_x"),
    ),
    hand_off("wkv_transposed", "S is transposed at every hand-off", "wkv", each("wkv", transposed), "fla-org/fla#351"),
    hand_off("wkv_of_first_head", "all heads go on with the first one's S", "wkv", each("wkv", first_head)),
    hand_off("wkv_of_next_head", "each head goes on with its neighbour's S", "wkv", each("wkv", next_head)),
    Mutant(
        "state.transposed_on_import",
        "an imported S is taken for [key, value]",
        RIGHT["import"],
        methods={"import_state": turned_import},
        seen="fla-org/fla#351",
    ),
    Mutant(
        "state.transposed_on_export",
        "S is exported as [key, value]",
        RIGHT["export"],
        methods={**SNAPSHOTS, "export_state": turned_export},
        seen="JL-er/RWKV-PEFT:e02ce4b",
    ),
    Mutant(
        "state.transposed_outside",
        "S goes in and comes out as [key, value]: import and export undo each other",
        RIGHT["import"],
        methods={**SNAPSHOTS, "import_state": turned_import, "export_state": turned_export},
        seen="fla-org/fla#351",
    ),
    Mutant(
        "state.import_ignored",
        "an imported state is ignored: the next call starts from zero",
        RIGHT["import"],
        methods={"import_state": ignored_import},
    ),
    Mutant(
        "state.first_import_again",
        "the second import finds the first one's buffers",
        RIGHT["import"],
        methods={"import_state": first_import_again},
        seen="cryscan/web-rwkv:2b60c4c",
    ),
    Mutant(
        "state.not_cleared",
        "a new state is memory that nobody cleared",
        RIGHT["initial"],
        methods={"initial_state": uninitialised},
    ),
    Mutant(
        "state.left_over",
        "a new sequence begins with the state that the last one left",
        RIGHT["initial"],
        methods={"initial_state": left_over, "piece": leaving},
        seen="sgl-project/sglang#30115",
    ),
    Mutant(
        "state.export_is_a_view",
        "what was exported changes when the engine runs on",
        RIGHT["export"],
        methods={**SNAPSHOTS, "piece": into_the_same_arrays, "export_state": lambda port, state: dict(state)},
    ),
    Mutant(
        "state.import_is_a_view",
        "the engine writes into the arrays that it was given",
        "import_state: the arrays stay the caller's",
        methods={
            "piece": into_the_same_arrays,
            "import_state": lambda port, arrays: {n: a.astype(port.kind, copy=False) for n, a in arrays.items()},
        },
    ),
    # What an attention block carries.
    hand_off("cache_not_appended", "k and v of a call are not cached", "cache", K_AND_V, model=HYBRID),
    hand_off("cached_k_and_v_swapped", "k is cached as v and v as k", "cache", swapped("k", "v"), model=HYBRID),
    hand_off(
        "cache_of_last_call",
        "each call's k and v take the place of those cached",
        "cache",
        both(each("k", last_call_only, "moba"), each("v", last_call_only, "moba")),
        "fla-org/fla#211",
        model=HYBRID,
    ),
    hand_off(
        "cache_grown_twice",
        "k and v of a call are appended twice",
        "cache",
        both(each("k", twice, "moba"), each("v", twice, "moba")),
        model=HYBRID,
    ),
    hand_off(
        "cached_v_out_of_order",
        "v is cached newest first, k oldest first",
        "cache",
        each("v", newest_first, "moba"),
        model=HYBRID,
    ),
    hand_off(
        "moba_ffn_x_lost",
        "the attention block's shift state is not written back",
        "moba.ffn_x",
        each("ffn_x", lost, "moba"),
        model=HYBRID,
    ),
    hand_off(
        "moba_ffn_x_shared",
        "the attention block and the block before it share one shift state",
        "moba.ffn_x",
        shared_with_attention,
        model=HYBRID,
    ),
    Mutant(
        "state.cache_left_over",
        "a new sequence sees the keys of the last one",
        RIGHT["initial"],
        methods={"initial_state": left_over_cache, "piece": leaving},
        model=HYBRID,
    ),
    # Right.
    Mutant(
        "state.kept_transposed",
        "S is kept as [key, value] inside the engine",
        RIGHT["wkv"],
        methods={**SNAPSHOTS, "piece": turned_inside, "import_state": turned_import, "export_state": turned_export},
        same="it is turned back wherever it is read or given out",
    ),
    Mutant(
        "state.written_in_place",
        "the state's arrays are written over call by call",
        RIGHT["export"],
        methods={"piece": into_the_same_arrays},
        same="whatever goes in or out is copied",
    ),
)
