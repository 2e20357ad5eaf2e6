"""How far can π_CMPO be from its prior? Gradient ascent against the theorem's tanh(c/2).

    python examples/cmpo_bound.py -o cmpo_bound.png

For every clipping threshold c we look for the prior and the advantages that push π_CMPO as far from
its prior as they can, in total variation. The search finds tanh(c/2), with two actions or with
sixty-four, and never more: figure 3a of the paper.
"""

import argparse
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from muesli.distributions import Categorical
from muesli.ops.targets import cmpo_policy, max_total_variation, total_variation

THRESHOLDS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0)
NUM_ACTIONS = (2, 8, 64)
STYLES = (("o", 11, "#0072B2"), ("s", 7, "#E69F00"), ("D", 3.5, "#B02A5B"))  # marker, size, colour


def distance(prior_logits, advantages, threshold):
    """The total variation between π_CMPO and its prior, []."""
    prior = Categorical(prior_logits)
    return total_variation(cmpo_policy(prior, advantages, threshold), prior)


@partial(jax.jit, static_argnames=("num_actions", "steps"))
def ascend(key, threshold, num_actions, steps):
    """Climbs from a random prior and small advantages: the distance on the way, [steps + 1]."""
    key_prior, key_advantages = jax.random.split(key)
    # Small at first: an advantage that starts beyond ±c has no gradient and would never move.
    start = (
        jax.random.normal(key_prior, (num_actions,)),
        0.1 * threshold * jax.random.normal(key_advantages, (num_actions,)),
    )
    optimiser = optax.adam(optax.cosine_decay_schedule(0.1, max(1, steps)))

    def climb(carry, _):
        point, state = carry
        value, gradient = jax.value_and_grad(lambda p: distance(*p, threshold))(point)
        updates, state = optimiser.update(jax.tree.map(jnp.negative, gradient), state)
        return (optax.apply_updates(point, updates), state), value

    (end, _), on_the_way = jax.lax.scan(climb, (start, optimiser.init(start)), length=steps)
    return jnp.append(on_the_way, distance(*end, threshold))


def search(steps, seed=0, thresholds=THRESHOLDS, num_actions=NUM_ACTIONS):
    """The largest distance found, [numbers of actions, thresholds]."""
    keys = jax.random.split(jax.random.key(seed), len(thresholds))
    climb_all = jax.vmap(ascend, in_axes=(0, 0, None, None))
    found = [climb_all(keys, jnp.array(thresholds), n, steps).max(axis=-1) for n in num_actions]
    return np.stack(found)


@partial(jax.jit, static_argnames=("num_points", "num_actions"))
def random_points(key, highest, num_points=1500, num_actions=8):
    """Random thresholds, and the distance of a random prior and advantages at each, [P] both."""
    keys = jax.random.split(key, 3)
    thresholds = jax.random.uniform(keys[0], (num_points,), maxval=highest)
    prior_logits = 2.0 * jax.random.normal(keys[1], (num_points, num_actions))
    advantages = 3.0 * jax.random.normal(keys[2], (num_points, num_actions))
    return thresholds, jax.vmap(distance)(prior_logits, advantages, thresholds)


def draw(axes: Axes, found, thresholds=THRESHOLDS, num_actions=NUM_ACTIONS):
    """The theorem's curve, what the ascent found on it, and random policies below it."""
    highest = 1.06 * max(thresholds)
    curve = np.linspace(0.0, highest, 300)
    axes.plot(curve, max_total_variation(curve), color="#222222", lw=1.6, label=r"$\tanh(c\,/\,2)$")
    for n, row, (marker, size, colour) in zip(num_actions, found, STYLES, strict=True):
        axes.plot(
            thresholds,
            row,
            marker,
            ms=size,
            mfc="white" if size > 10 else colour,
            mec=colour,
            mew=1.6 if size > 10 else 0.0,
            label=f"gradient ascent, {n} actions",
        )
    axes.plot(
        *random_points(jax.random.key(1), highest),
        ".",
        ms=3.5,
        mew=0,
        color="#AEB5BE",
        zorder=1,
        label="random prior and advantages, 8 actions",
    )
    bound = float(max_total_variation(1.0))
    axes.plot([1.0, 1.0, 0.0], [0.0, bound, bound], color="#222222", lw=0.8, ls=(0, (4, 3)))
    axes.annotate(
        f"the paper's $c = 1$: {bound:.3f}",
        (1.0, bound),
        (1.6, bound),
        va="center",
        arrowprops={"arrowstyle": "-", "lw": 0.8, "color": "#222222", "shrinkB": 7},
        bbox={"boxstyle": "round,pad=0.3", "fc": "white", "ec": "none", "alpha": 1.0},
    )
    axes.set(xlim=(0.0, highest), ylim=(0.0, 1.04))
    axes.set_xlabel("clipping threshold $c$")
    axes.set_ylabel(r"total variation of $\pi_{\mathrm{CMPO}}$ from its prior")
    title = r"How far $\pi_{\mathrm{CMPO}}$ can be from its prior: $\tanh(c\,/\,2)$, and no further"
    axes.set_title(title, loc="left", pad=12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#E6E8EB", lw=0.7)
    axes.set_axisbelow(True)
    legend = axes.legend(loc="lower right", framealpha=1.0, edgecolor="#E6E8EB", fontsize=9)
    legend.set_zorder(10)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("cmpo_bound.png"))
    parser.add_argument("--steps", type=int, default=3000, help="steps of gradient ascent")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    found = search(options.steps, options.seed)
    print("     c  tanh(c/2)  " + "  ".join(f"{n:>2} actions" for n in NUM_ACTIONS))
    for c, column in zip(THRESHOLDS, found.T, strict=True):
        row = "  ".join(f"{value:10.6f}" for value in column)
        print(f"{c:6.2f}  {float(max_total_variation(c)):9.6f}  {row}")

    figure = Figure(figsize=(7.2, 4.6), dpi=160, layout="constrained")
    draw(figure.add_subplot(), found)
    figure.savefig(options.output)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
