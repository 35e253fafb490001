"""Tasks drawn anew, many times over: the one way in which intervals are resampled here.

Every task gets a Poisson(1) weight per draw, drawn from its id. So the groups of one prompt rise and fall
together, the order of reading plays no part, and no list of tasks has to be known beforehand. Needs the
`analysis` extra.

References: J. Hanley, B. MacGibbon, "Creating non-parametric bootstrap samples using Poisson frequencies",
Computer Methods and Programs in Biomedicine 83 (2006).
"""

from __future__ import annotations

import hashlib
from typing import TypeAlias

from selective_rollout.errors import MissingExtraError

try:
    import numpy as np
    from numpy.typing import NDArray
except ImportError:
    raise MissingExtraError("analysis", "numpy") from None

Weights: TypeAlias = NDArray[np.int64]


def task_weights(task_id: str, draws: int, seed: int = 0) -> Weights:
    """How often the task is in each draw; the same for the same id and seed."""
    text = f"{seed}\x1f{task_id}" if seed else task_id
    entropy = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16], "big")
    return np.random.Generator(np.random.PCG64(entropy)).poisson(1.0, draws)
