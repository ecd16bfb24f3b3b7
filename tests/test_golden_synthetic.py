"""The generator of weights, against the arithmetic of RECIPES.md written a second time."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from gander.checkpoint import shapes
from gander.checkpoint.synthetic import CHUNK, Fill, Part, bits, filled
from gander.golden import GOLDEN, NAMES, RECIPES, open_model
from gander.golden.listing import LISTING, listing

RECIPES_MD = (GOLDEN / "RECIPES.md").read_text(encoding="utf-8")


def word(name, seed, i):
    """Steps 1 and 2, with Python's integers."""
    mask = 2**64 - 1
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 & mask
    z = ((h ^ seed) + (i + 1) * 0x9E3779B97F4A7C15) & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return z ^ z >> 31


def weight(name, seed, i, scale, offset):
    """Steps 3 to 5, with fractions."""
    u = Fraction(word(name, seed, i) >> 40, 2**23) - 1
    x = Fraction(offset) + Fraction(scale) * u
    if x == 0:
        return 0.0
    exponent = math.floor(math.log2(abs(x)))
    exponent += (abs(x) >= Fraction(2) ** (exponent + 1)) - (abs(x) < Fraction(2) ** exponent)
    step = max(Fraction(2) ** (exponent - 7), Fraction(1, 2**24))
    return float(round(x / step) * step)  # round() of a Fraction is half to even


def table():
    """The test values of RECIPES.md."""
    rows = RECIPES_MD.split("## Test values\n")[1].split("\n\n")[0].splitlines()[2:]
    for row in rows:
        yield [cell.strip().strip("`") for cell in row.strip("|").split("|")]


@pytest.mark.parametrize("row", list(table()), ids=lambda row: "-".join(row[:3]))
def test_the_test_values_of_recipes_md(row):
    name, seed, i, z, *values = row
    seed, i = int(seed), int(i)
    assert int(bits(name, seed, i, i + 1)[0]) == word(name, seed, i) == int(z, 16)
    for value, (scale, offset) in zip(values, [(1, 0), (4.5, -1.5), (2**-23, 0)], strict=True):
        assert weight(name, seed, i, scale, offset) == float.fromhex(value)
        if i < 10:
            assert filled(name, (i + 1,), Fill(scale, offset), seed)[i] == float.fromhex(value)


def test_a_stream_is_the_same_in_pieces():
    assert np.array_equal(bits("x", 1, 0, 100)[37:], bits("x", 1, 37, 100))
    shape = (3, CHUNK // 2)  # more than one chunk
    whole = filled("x", shape, Fill(1.0), 1)
    assert whole[2, 5] == weight("x", 1, 2 * (CHUNK // 2) + 5, 1.0, 0.0)


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (4.5, -1.5), (2**-16, 0.0), (2**-22, 2**-18), (24.0, 40.0)])
def test_rounding_is_that_of_exact_fractions(scale, offset):
    values = filled("some.tensor", (500,), Fill(scale, offset), 3)
    assert [float(value) for value in values] == [weight("some.tensor", 3, i, scale, offset) for i in range(500)]


def test_parts_have_their_own_scale_and_the_later_wins():
    fill = Fill(1.0, parts=(Part(0, 1, 3, 0.0, 5.0), Part(1, 0, 2, 0.0, 7.0)))
    values = filled("x", (4, 3), fill, 0)
    assert (values[:, :2] == 7).all() and (values[1:3, 2] == 5).all()
    plain = filled("x", (4, 3), Fill(1.0), 0)
    assert values[0, 2] == plain[0, 2] and values[3, 2] == plain[3, 2]
    vector = filled("x", (1, 1, 6), Fill(1.0, parts=(Part(0, 4, 6, 0.0, 2.0),)), 0)
    assert vector.shape == (1, 1, 6) and (vector[0, 0, 4:] == 2).all() and (vector[0, 0, :4] != 2).all()


@pytest.mark.parametrize(("scale", "offset"), [(0.1, 0.0), (1.0, 1e-3), (2**-25, 0.0), (60.0, 5.0)])
def test_a_scale_that_is_not_exact_is_refused(scale, offset):
    with pytest.raises(ValueError, match="not exact"):
        Fill(scale, offset)
    with pytest.raises(ValueError, match="not exact"):
        Fill(1.0, parts=(Part(0, 0, 1, scale, offset),))


def test_numbers_are_spread_evenly():
    values = filled("x", (100_000,), Fill(1.0), 0)
    counts, _ = np.histogram(values, bins=10, range=(-1, 1))
    assert np.abs(counts - 10_000).max() < 500
    assert abs(values.mean()) < 0.01
    assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < 0.01
    assert abs(np.corrcoef(values, filled("y", (100_000,), Fill(1.0), 0))[0, 1]) < 0.01
    assert abs(np.corrcoef(values, filled("x", (100_000,), Fill(1.0), 1))[0, 1]) < 0.01


@pytest.mark.parametrize("name", NAMES)
def test_every_weight_is_exact_in_every_dtype(name):
    for tensor, value in open_model(f"golden:{name}").tensors.items():
        assert value.dtype == torch.float32
        for dtype in (torch.bfloat16, torch.float16):
            assert torch.equal(value.to(dtype).to(torch.float32), value), (tensor, dtype)


@pytest.mark.parametrize("name", NAMES)
def test_recipes_json_makes_the_model(name):
    """The list alone, without recipes.py, gives the same numbers."""
    recipe = json.loads(LISTING.read_text(encoding="utf-8"))[name]
    model = open_model(f"golden:{name}")
    assert {entry["name"]: tuple(entry["shape"]) for entry in recipe["tensors"]} == shapes(model.config)
    for entry in recipe["tensors"]:
        flat = model.tensors[entry["name"]].reshape(-1)
        for i in {0, 1, len(flat) // 2, len(flat) - 1}:
            scale, offset = entry["scale"], entry["offset"]
            where = np.unravel_index(i, [size for size in entry["shape"] if size > 1])
            for axis, start, stop, *own in entry["parts"]:
                if start <= where[axis] < stop:
                    scale, offset = own
            assert float(flat[i]) == weight(entry["name"], recipe["seed"], i, scale, offset), (entry["name"], i)


def test_recipes_json_is_up_to_date():
    assert LISTING.read_text(encoding="utf-8") == listing(), "run python -m gander.golden"
    assert set(json.loads(listing())) == set(RECIPES)
