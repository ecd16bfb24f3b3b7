"""Every row of docs/performance.md: `gander bench` runs this file. One row alone: `pytest benchmarks -k decode-fp32`.

Contenders run in processes of their own and take turns, a block of laps each, so that a slow minute hits all of them. A
block's figure is its laps' median. No contender is timed before it is proved right (proof.py).
"""

import pytest

from gander.benchmarks.clock import clock
from gander.benchmarks.field import Field
from gander.benchmarks.measure import measure
from gander.benchmarks.proof import Wrong
from gander.benchmarks.rows import ROWS, Row


@pytest.mark.benchmark(timer=clock)
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_row(benchmark, field: Field, quick: bool, row: Row) -> None:
    """What gander's contender takes is the benchmark's time; all the rest of the row is beside it, as extra_info."""
    if quick and row.long:
        pytest.skip("takes minutes: left out by --quick")
    try:
        measure(row, field, benchmark, blocks=min(row.blocks, 3) if quick else row.blocks)
    except Wrong as wrong:
        pytest.fail(f"not timed: {wrong}", pytrace=False)
