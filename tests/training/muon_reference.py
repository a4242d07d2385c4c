"""The Polar Express iteration of Muon in NumPy and float64, as tests hold ours against it."""

from __future__ import annotations

import numpy as np

COEFFICIENTS = [
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
]
"""Amsel et al., arXiv 2505.16932, written out again: a test that read ours would agree with any."""


def numpy_polar_express(matrix: np.ndarray) -> np.ndarray:
    """The iteration on the singular values themselves: each is mapped by the polynomial a s + b s^3 + c s^5."""
    left, values, right = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    values = values / (1.01 * np.linalg.norm(values) + 1e-6)
    for a, b, c in COEFFICIENTS:
        values = a * values + b * values**3 + c * values**5
    return (left * values) @ right
