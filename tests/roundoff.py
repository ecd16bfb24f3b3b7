"""How near the fast engine's attention must be to what it is compared with: a number of roundoffs."""

import numpy as np

H, N = 3, 64
ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}

# A mean of values is rounded as its weights are: scores of 64 products, √64 roundoffs of some 5 at the most.
ROUNDOFFS = 64


def close(got, want, dtype="float32", roundoffs=ROUNDOFFS):
    assert got.shape == want.shape
    bound = roundoffs * ROUNDOFF[dtype] * np.abs(want).max()
    worst = np.abs(got - want).max()
    assert worst <= bound, f"{worst:.1e} > {bound:.1e}"
