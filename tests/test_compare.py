"""Comparing fails on whatever is not equal within the bound; and a bound is what the arithmetic explains."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gander.conformance.compare import Tally
from gander.conformance.context import splits
from gander.conformance.results import CheckResult, Status
from gander.conformance.tolerances import SAFETY, TIE, TRACE, UNIT_ROUNDOFF, bounds, jitter, round_to, trace_bounds

WANT = np.arange(24, dtype=np.float64).reshape(4, 6) / 8


def verdict(got: object, bound: float = 1e-3) -> CheckResult:
    tally = Tally()
    tally.tensor("x", got, WANT, bound)
    return CheckResult("check", tally.compared, tally.expected, tally.worst, tuple(tally.findings), 0.0)


def test_equal_passes() -> None:
    assert verdict(WANT.copy()).status is Status.PASS


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, 0.126])
@pytest.mark.parametrize("place", [(0, 0), (2, 5), (3, 1)])
def test_one_wrong_number_fails_and_is_placed(value: float, place: tuple[int, int]) -> None:
    got = WANT.copy()
    got[place] += value
    result = verdict(got)
    assert result.status is Status.FAIL
    assert result.findings[0].token == place[0]
    assert result.worst > 1


def test_all_nan_fails() -> None:
    assert verdict(np.full_like(WANT, np.nan)).status is Status.FAIL


@pytest.mark.parametrize(
    ("got", "message"),
    [
        (WANT.T, "has shape (6, 4), but should be (4, 6)"),
        (WANT[:3], "has shape (3, 6), but should be (4, 6)"),
        (WANT[None], "has shape (1, 4, 6), but should be (4, 6)"),
        (WANT.tolist(), "is of type list, but should be a numpy array of floats"),
        (WANT.astype(int), "is of type int64 array, but should be a numpy array of floats"),
    ],
)
def test_what_is_no_such_array_fails(got: object, message: str) -> None:
    result = verdict(got)
    assert result.status is Status.FAIL
    assert result.findings[0].message == message


def test_errors_that_cancel_in_a_mean_fail() -> None:
    """A permutation has the same mean, the same norm, the same everything but the numbers."""
    assert verdict(WANT[:, ::-1].copy()).status is Status.FAIL


def test_one_number_of_many_fails() -> None:
    """Three bounds off in one of a hundred: its row's mean, and its row's norm, are well within."""
    want = np.zeros((2, 100))
    got = want.copy()
    got[1, 57] = 3e-3
    tally = Tally()
    assert not tally.tensor("x", got, want, 1e-3)
    assert tally.worst == pytest.approx(3)


def test_each_row_has_its_own_bound() -> None:
    want, bound = np.zeros((2, 8)), np.array([1.0, 1e-6])
    loud, quiet = want.copy(), want.copy()
    loud[0], quiet[1] = 1e-3, 1e-3
    assert Tally().tensor("x", loud, want, bound)
    assert not Tally().tensor("x", quiet, want, bound)


def test_missing_is_incomplete_and_counted() -> None:
    result = verdict(None)
    assert (result.status, result.compared, result.expected) == (Status.INCOMPLETE, 0, 1)


def test_nothing_compared_is_incomplete() -> None:
    assert CheckResult("check", 0, 0, 0.0, (), 0.0).status is Status.INCOMPLETE


def test_a_zero_bound_asks_for_the_last_bit() -> None:
    tally = Tally()
    assert tally.equal("x", WANT.copy(), WANT)
    assert not tally.equal("x", np.nextafter(WANT, 9), WANT)


def test_the_bound_of_a_quiet_head_is_its_own() -> None:
    """A loud head next to it must not hide its error."""
    want = np.ones((5, 2, 8)) * np.array([1e3, 1e-3])[:, None]
    yardstick = want.astype(np.float32)
    loud, quiet = bounds(want, [yardstick], "float32")[0]
    assert quiet == pytest.approx(SAFETY * UNIT_ROUNDOFF["float32"] * 1e-3, rel=1e-6)
    assert loud > 1e5 * quiet


def test_the_bound_follows_the_yardstick() -> None:
    """Ten times the noise, ten times the bound; a lucky row gets what its like have."""
    want = np.ones((50, 8))
    noise = np.full((50, 1), 1e-5)
    noise[7] = 0
    small, large = (bounds(want, [want + times * noise], "float32") for times in (1, 10))
    assert np.allclose(large, 10 * small)
    assert small[7] == pytest.approx(SAFETY * 1e-5, rel=0.05)


def test_one_loud_token_does_not_set_the_bound_of_the_others() -> None:
    """Its noise is shared as a root mean square over the tokens, not as a maximum."""
    want = np.ones((100, 8))
    yardstick = want + 1e-6
    yardstick[3] += 1e-3
    bound = bounds(want, [yardstick], "float32")
    assert bound[3] == pytest.approx(SAFETY * 1e-3, rel=0.01)
    assert bound[4] == pytest.approx(SAFETY * 1e-4, rel=0.01)


def test_the_bound_takes_the_noisiest_run() -> None:
    want = np.ones((4, 8))
    runs = [want, want + 1e-5, want - 3e-5]
    assert np.allclose(bounds(want, runs, "float32"), SAFETY * 3e-5)


def test_safety_is_four_times_four() -> None:
    """What the docstring argues for; a looser one lets small faults through, see tests/meta."""
    assert SAFETY == 16
    assert TRACE == {"float32": 1e-4, "float64": 6 * 2.0**-24}
    assert TIE * SAFETY == 4


@pytest.mark.parametrize(("dtype", "unit"), [("float32", 2.0**-24), ("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_jitter_moves_by_one_rounding(dtype: str, unit: float) -> None:
    value = np.linspace(1.001, 1.999, 4096, dtype=np.float32)
    moved = jitter(dtype, 1)("blocks.0.att.r", value)
    relative = np.abs(moved.astype(np.float64) / value - 1)
    assert moved.dtype == value.dtype
    assert (np.diff(np.sign(moved - value)) != 0).any()  # some up, some down
    assert 0.9 * unit < relative.mean() < 2.1 * unit  # float32 moves by a whole unit in the last place: two roundings
    assert not np.array_equal(moved, jitter(dtype, 2)("blocks.0.att.r", value))


def test_decay_is_jittered_as_float32_whatever_the_dtype() -> None:
    value = np.full(64, 0.9, np.float32)
    assert np.abs(jitter("bfloat16", 1)("blocks.0.att.w", value) - value).max() < 1e-6


def test_a_float16_that_is_nearly_zero_may_be_off_by_half_of_its_smallest_number() -> None:
    want = np.full((3, 8), 1e-6)
    assert (bounds(want, [want], "float16") >= SAFETY * 2.0**-25).all()
    assert (bounds(want, [want], "float32") < 1e-12).all()


def test_float64_is_held_to_float64() -> None:
    want = np.ones((4, 8))
    noisy = want + 1e-6
    ratio = bounds(want, [noisy], "float32") / bounds(want, [noisy], "float64")
    assert np.allclose(ratio, 2.0**29)


def test_a_state_is_bounded_head_by_head() -> None:
    """The axis of a state's rows is not the axis of tokens."""
    want = np.zeros((2, 4, 4))
    yardstick = want.copy()
    yardstick[0] = 1e-4
    bound = bounds(want, [yardstick], "float32", token_axis=False)
    assert np.allclose(bound[0], SAFETY * 1e-4)
    assert (bound[1] <= SAFETY * 2.0**-150).all()  # nothing but what float32 cannot hold


def test_trace_bounds_are_relative_to_the_rows_like() -> None:
    want = np.ones((4, 8))
    want[2] = 0
    assert np.allclose(trace_bounds(want, 1e-4)[2], 1e-4 * np.sqrt(3 / 4))


@pytest.mark.parametrize(("dtype", "bits"), [("bfloat16", 8), ("float16", 11)])
def test_rounding_keeps_the_bits_of_its_type_and_spares_decay(dtype: str, bits: int) -> None:
    value = np.array([1 + 2.0 ** -(bits - 1), 1 + 2.0 ** -(bits + 1)], np.float32)
    assert round_to(dtype)("blocks.0.att.r", value).tolist() == [value[0], 1.0]
    assert round_to(dtype)("blocks.0.att.w", value) is value


@given(st.integers(1, 9))
def test_splits_are_every_way_to_cut(n: int) -> None:
    ways = splits(n)
    assert len(set(ways)) == len(ways) == 2 ** (n - 1)
    assert all(sum(parts) == n and min(parts) > 0 for parts in ways)
    assert (ways[0], ways[-1]) == ((n,), (1,) * n)
