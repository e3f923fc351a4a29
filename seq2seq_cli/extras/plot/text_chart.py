"""Draws a curve with characters, for a terminal."""

import math
from collections.abc import Iterable, Sequence

_ROWS = 14
_MOST_COLUMNS = 100
_LABEL = 9  # characters left of the axis


def text_chart(
    curve: Sequence[tuple[float, float]], marks: Iterable[float], columns: int, dot: str
) -> str:
    """Draw the points (x, y), x on a logarithmic axis, and `marks`, which are vertical lines.

    `dot` stands for a point. The chart is `columns` wide, but at most 100. If points are far above
    the first one, where a loss diverges, they are left out, so that the rest can be seen.
    """
    width = max(10, min(columns, _MOST_COLUMNS) - _LABEL - 2)
    (first_x, first_y), last_x = curve[0], curve[-1][0]
    low = min(y for _, y in curve)
    high = min(max(y for _, y in curve), first_y + (first_y - low) / 2)
    height = high - low or 1.0
    span = math.log(last_x / first_x)

    def column(x: float) -> int:
        return round((width - 1) * math.log(x / first_x) / span)

    grid = [[" "] * width for _ in range(_ROWS)]
    for mark in marks:
        if first_x <= mark <= last_x:
            for row in grid:
                row[column(mark)] = "|"
    for x, y in curve:
        if y <= high:
            grid[round((_ROWS - 1) * (high - y) / height)][column(x)] = dot
    labels = [f"{high:.3f}", *[""] * (_ROWS - 2), f"{low:.3f}"]
    lines = [f"{label:>{_LABEL}} |{''.join(row)}" for label, row in zip(labels, grid, strict=True)]
    axis = "-" * width
    left, right = f"{first_x:.1e}", f"{last_x:.1e}"
    return "\n".join(
        [
            *(line.rstrip() for line in lines),
            f"{'':>{_LABEL}} +{axis}",
            f"{'':>{_LABEL}}  {left}{right:>{width - len(left)}}",
        ]
    )
