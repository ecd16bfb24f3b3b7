"""The array type of the formulas: numpy floats of any precision, kept through every operation."""

from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
