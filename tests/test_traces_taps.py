"""The names of taps and states."""

import pytest

from gander.errors import InputError
from gander.traces import block_tensors, named, op_of, state_tensors, taps


def test_taps_are_in_execution_order_and_distinct():
    names = [tap.name for tap in taps(2)]
    assert names[0] == "emb" and names[-2:] == ["ln_out", "logits"]
    assert names.index("blocks.0.out") < names.index("blocks.1.att.in")
    assert names.index("blocks.0.att.k") < names.index("blocks.0.att.kk") < names.index("blocks.0.att.wkv")
    assert len(names) == len(set(names)) == 3 + 2 * 27


def test_named_finds_every_tensor_with_its_axes():
    for tensor in (*taps(3), *state_tensors(3), *block_tensors(2)):
        assert named(tensor.name) == tensor
    assert named("blocks.11.state.wkv").axes == ("H", "N", "N")
    assert named("blocks.11.att.states").axes == ("T", "H", "N", "N")


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("blocks.3.att.kkk", "blocks.3.att.kk"),
        ("blocks.03.att.kk", "blocks.0.att.kk"),
        ("blocks.-1.att.kk", "blocks.0.att.kk"),
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
