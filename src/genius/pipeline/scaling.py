"""Steps and batches for the data that there is: a recipe's are for some ten thousand queries."""

from __future__ import annotations

from genius.config import OptimiserConfig

EPOCHS = 100  # more looks at the same few queries teach nothing
LEAST_STEPS = 50


def fit_to_data(optimiser: OptimiserConfig, queries: int) -> OptimiserConfig:
    """`optimiser` with at most as large a batch as there are queries, and steps for at most EPOCHS."""
    batch = min(optimiser.batch, max(1, queries))
    steps = min(optimiser.steps, max(LEAST_STEPS, -(-EPOCHS * queries // batch)))
    if (batch, steps) == (optimiser.batch, optimiser.steps):
        return optimiser
    return optimiser.model_copy(
        update={
            "batch": batch,
            "steps": steps,
            "warmup": min(optimiser.warmup, steps // 10),
            "check_every": min(optimiser.check_every, max(1, steps // 3)),
        }
    )
