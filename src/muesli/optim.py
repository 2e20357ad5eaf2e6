"""The paper's optimiser as one optax chain: Adam, clipped updates, decay, a falling rate."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from muesli.config import OptimiserConfig
from muesli.types import Array, PyTree


class ClipUpdatesState(NamedTuple):
    """clipped_share: [] f32, the share of parameters whose last update was clipped."""

    clipped_share: Array


def clip_updates(limit: float) -> optax.GradientTransformation:
    """Clips every parameter's update to [−limit, limit] and remembers how many it touched."""

    def init(params: PyTree) -> ClipUpdatesState:
        del params
        return ClipUpdatesState(jnp.zeros(()))

    def update(
        updates: PyTree, state: ClipUpdatesState, params: PyTree | None = None
    ) -> tuple[PyTree, ClipUpdatesState]:
        del state, params
        leaves = jax.tree.leaves(updates)
        touched = jnp.stack([jnp.sum(jnp.abs(u) > limit, dtype=jnp.float32) for u in leaves])
        share = jnp.sum(touched) / float(sum(u.size for u in leaves))
        clipped = jax.tree.map(lambda u: jnp.clip(u, -limit, limit), updates)
        return clipped, ClipUpdatesState(share)

    return optax.GradientTransformation(init, update)


def learning_rate_schedule(config: OptimiserConfig, total_updates: int) -> optax.Schedule:
    """Linear from the first update's rate to the final rate after ``total_updates`` updates."""
    start, end, total = config.learning_rate, config.final_learning_rate, max(1, total_updates)

    def schedule(count: Array) -> Array:
        # Counted down in integers: 1 − count / total ends a rounding error away from zero, below it
        # even, once a compiler multiplies by 1 / total instead.
        return end + (start - end) * (jnp.maximum(0, total - count) / total)

    return schedule


def make_optimiser(config: OptimiserConfig, total_updates: int) -> optax.GradientTransformation:
    """θ ← θ − α_t (clip(m̂ / (√v̂ + ε), −1, 1) + decay · θ)."""
    limit = config.max_gradient_norm
    return optax.chain(
        optax.identity() if limit is None else optax.clip_by_global_norm(limit),
        optax.scale_by_adam(b1=config.adam_b1, b2=config.adam_b2, eps=config.adam_epsilon),
        optax.identity() if config.update_clip is None else clip_updates(config.update_clip),
        optax.add_decayed_weights(config.weight_decay),
        optax.scale_by_learning_rate(learning_rate_schedule(config, total_updates)),
    )


def clipped_share(optimiser_state: PyTree) -> Array:
    """The share of parameters whose last update was clipped, []; 0 if updates are not clipped."""
    for state in optimiser_state:
        if isinstance(state, ClipUpdatesState):
            return state.clipped_share
    return jnp.zeros(())
