"""What the paper states, and where: arXiv:2605.09256, its only numbers.

Its figures carry no table; what their captions and text say in words is in the studies.
"""

from __future__ import annotations

from dataclasses import dataclass

PERCEPTRON, COMMITTEE, MLP = "perceptron", "committee machine", "MLP"


@dataclass(frozen=True)
class Published:
    """A published value, "mean ± CI"."""

    value: float
    half_width: float
    where: str
    trials: int | None = None

    def __str__(self) -> str:
        digits = 4 if self.value < 0.05 or self.half_width > 0.002 else 3
        n = f" (n = {self.trials})" if self.trials else ""
        return f"{self.value:.{digits}f} ± {self.half_width:.{digits}f}{n}"


_TABLE = "Table 1"
TABLE_1: dict[tuple[str, str], Published] = {
    (PERCEPTRON, "vanilla"): Published(0.1936, 0.0113, _TABLE, 20),
    (PERCEPTRON, "RSA M=3"): Published(0.0539, 0.0329, _TABLE, 20),
    (PERCEPTRON, "M-cover M=3"): Published(0.0420, 0.0319, _TABLE, 20),
    (COMMITTEE, "vanilla"): Published(0.076, 0.002, _TABLE),
    (COMMITTEE, "rSGD M=4"): Published(0.071, 0.001, _TABLE),
    (COMMITTEE, "M-cover M=4"): Published(0.062, 0.001, _TABLE),
    (MLP, "vanilla"): Published(0.0173, 0.001, _TABLE),
    (MLP, "M-cover M=5"): Published(0.0167, 0.001, _TABLE),
}
