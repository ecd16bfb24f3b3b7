"""The names of taps and states."""

import pytest

from gander.errors import InputError
from gander.traces import block_order, block_tensors, named, op_of, skipped, state_tensors, taps


def test_taps_are_in_execution_order_and_distinct():
    names = [tap.name for tap in taps(2)]
    assert names[0] == "emb" and names[-2:] == ["ln_out", "logits"]
    assert names.index("blocks.0.out") < names.index("blocks.1.att.in")
    assert names.index("blocks.0.att.k") < names.index("blocks.0.att.kk") < names.index("blocks.0.att.wkv")
    assert len(names) == len(set(names)) == 3 + 2 * 27


# As released: 12 + 4 and 32 + 8. R is a block of RWKV-7, A one of attention.
ORDERS = {
    (12, 4): "R0 R1 R2 A0 R3 R4 R5 A1 R6 R7 R8 A2 R9 R10 R11 A3",
    (32, 8): " ".join(f"R{4 * n} R{4 * n + 1} R{4 * n + 2} R{4 * n + 3} A{n}" for n in range(8)),
    (13, 4): "R0 R1 R2 A0 R3 R4 R5 A1 R6 R7 R8 A2 R9 R10 R11 A3",
    (12, 5): "R0 R1 A0 R2 R3 A1 R4 R5 A2 R6 R7 A3 R8 R9 A4",
    (3, 1): "R0 R1 R2 A0",
    (3, 0): "R0 R1 R2",
    (2, 3): "A0 A1 A2",
    (1, 1): "R0 A0",
}
SKIPPED = {(13, 4): "R12", (12, 5): "R10 R11", (2, 3): "R0 R1"}


@pytest.mark.parametrize(("layers", "attention_layers"), ORDERS)
def test_blocks_are_in_the_official_order(layers, attention_layers):
    def short(blocks):
        return " ".join(blocks).replace("blocks.", "R").replace("moba.", "A")

    sizes = layers, attention_layers
    assert short(block_order(*sizes)) == ORDERS[sizes]
    assert short(skipped(*sizes)) == SKIPPED.get(sizes, "")
    for tensors in (taps(*sizes), state_tensors(*sizes)):
        names = [tensor.name for tensor in tensors]
        seen = [".".join(name.split(".")[:2]) for name in names if name.startswith(("blocks.", "moba."))]
        assert list(dict.fromkeys(seen)) == block_order(*sizes) and len(names) == len(set(names))


def test_named_finds_every_tensor_with_its_axes():
    for tensor in (*taps(3, 2), *state_tensors(3, 2), *block_tensors("blocks.2"), *block_tensors("moba.1")):
        assert named(tensor.name) == tensor
    assert named("blocks.11.state.wkv").axes == ("H", "N", "N")
    assert named("blocks.11.att.states").axes == ("T", "H", "N", "N")


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("blocks.3.att.kkk", "blocks.3.att.kk"),
        ("blocks.03.att.kk", "blocks.0.att.kk"),
        ("blocks.-1.att.kk", "blocks.0.att.kk"),
        ("moba.1.qq", "moba.1.q"),
        ("moba.0.att.out", "moba.0.att"),
        ("logit", "logits"),
        ("block.2.mid", "blocks.0.mid"),
        ("blocks.99999999999.mid", "blocks.0.mid"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name, suggestion):
    with pytest.raises(InputError) as caught:
        named(name)
    assert name in str(caught.value) and repr(suggestion) in str(caught.value)


def test_op_of_drops_the_block():
    assert op_of("blocks.12.att.norm") == "att.norm" and op_of("logits") == "logits"
    assert op_of("moba.1.q") == "moba.q" and op_of("moba.0.state.ffn_x") == "moba.state.ffn_x"
