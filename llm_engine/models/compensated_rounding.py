"""Compensated rounding of weights (GPTQ, arXiv 2210.17323), to any grid of numbers.

The weights of a row are rounded one after another; each one's error is compensated by those still
to be rounded, as far as their inputs correlate. Inputs of large size come first, and scales are
fixed beforehand. It takes a Cholesky factor of the inputs' second moments.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

Nearest: TypeAlias = Callable[[Tensor, int, slice], tuple[Tensor, Tensor]]
"""Rounds values `[rows]`, float32, of a column to the nearest numbers of a grid: `(values, column,
rows)` -> the codes, and the numbers that they stand for, float32."""

_DAMPING = 0.01
"""Share of the mean of the moments that is added to each. Lower: inputs that the text happens to
lack make the factor unstable. Higher: less is compensated. GPTQ's own choice."""
_PANEL = 128
"""Columns whose errors are propagated together: the rest of the matrix is read once for them."""
_ROWS = 8192
"""Rows rounded at a time. They are independent; of a vocabulary, all would be a float copy of
it."""


class Compensation:
    """Compensated rounding of matrices that have the same inputs."""

    def __init__(self, moments: Tensor) -> None:
        """`moments`: second moments of the inputs, `[in, in]`, float32, on the matrices' device."""
        self.diagonal = moments.diagonal()
        """Mean square of each input `[in]`."""
        self._order = self.diagonal.argsort(descending=True, stable=True)
        self._factor = _inverse_factor(moments[self._order][:, self._order])

    def round(self, weight: Tensor, dtype: torch.dtype, nearest: Nearest) -> Tensor:
        """Round a floating `[out, in]`; returns the codes of `nearest`, of type `dtype`."""
        codes = torch.empty(weight.shape, dtype=dtype, device=weight.device)
        for first in range(0, len(weight), _ROWS):
            rows = slice(first, first + _ROWS)
            codes[rows] = self._round(weight[rows].float(), rows, dtype, nearest)
        return codes

    def _round(self, weight: Tensor, rows: slice, dtype: torch.dtype, nearest: Nearest) -> Tensor:
        # Column by column: the values of one lie next to each other.
        left = weight.T[self._order]
        codes = torch.empty(left.shape, dtype=dtype, device=weight.device)
        columns = self._order.tolist()
        for first in range(0, len(left), _PANEL):
            last = min(first + _PANEL, len(left))
            panel, errors = left[first:last], torch.empty_like(left[first:last])
            own = self._factor[first:last, first:last]
            for index, column in enumerate(columns[first:last]):
                codes[column], numbers = nearest(panel[index], column, rows)
                errors[index] = (panel[index] - numbers) / own[index, index]
                panel[index + 1 :].addr_(own[index, index + 1 :], errors[index], alpha=-1)
            left[last:].addmm_(self._factor[first:last, last:].T, errors, alpha=-1)
        return codes.T


def _inverse_factor(moments: Tensor) -> Tensor:
    """Upper Cholesky factor of the inverse: how an error is propagated to the columns behind."""
    damping = (_DAMPING * moments.diagonal().mean()).clamp(min=1e-20)  # also for zeros
    identity = torch.eye(len(moments), device=moments.device)
    lower = torch.linalg.cholesky(moments + damping * identity)
    upper: Tensor = torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True)
    return upper
