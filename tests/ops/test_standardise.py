"""Running statistics of observations, by hand and against NumPy over everything seen."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from muesli.ops.standardise import init_statistics, standardise, update_statistics


def test_statistics_by_hand():
    statistics = init_statistics(jnp.zeros(2))
    statistics = update_statistics(statistics, jnp.array([[[1.0, 10.0], [3.0, 10.0]]]))
    assert statistics.seen == 2
    np.testing.assert_allclose(statistics.mean, [2.0, 10.0])
    np.testing.assert_allclose(statistics.variance, [1.0, 0.0], atol=1e-7)
    # 1, 3 and 5, 7: mean 4, variance (9 + 1 + 1 + 9) / 4; 10, 10 and 14, 14: mean 12, variance 4.
    statistics = update_statistics(statistics, jnp.array([[[5.0, 14.0], [7.0, 14.0]]]))
    assert statistics.seen == 4
    np.testing.assert_allclose(statistics.mean, [4.0, 12.0])
    np.testing.assert_allclose(statistics.variance, [5.0, 4.0], rtol=1e-6)
    seen = standardise(statistics, jnp.array([9.0, 10.0]), clip=10.0)
    np.testing.assert_allclose(seen, [5.0 / np.sqrt(5.0), -1.0], rtol=1e-6)


def test_nothing_seen_leaves_an_observation_as_it_is():
    x = jnp.array([0.5, -3.0])
    np.testing.assert_allclose(standardise(init_statistics(x), x, 10.0), x, rtol=1e-6)
    assert standardise(None, x, 10.0) is x


def test_batches_of_any_size_give_the_statistics_of_all_that_was_seen():
    rng = np.random.default_rng(0)
    scale, offset = 10.0 ** np.arange(-3, 4), np.array([0, 1, -1, 100, 1e4, 1e5, -1e6])
    batches = [rng.normal(size=(b, t, 7)) * scale + offset for b, t in ((1, 1), (4, 30), (2, 7))]
    batches = [x.astype(np.float32) for x in batches * 5]
    statistics = init_statistics(jnp.zeros(7))
    for batch in batches:
        statistics = jax.jit(update_statistics)(statistics, batch)
    everything = np.concatenate([x.reshape(-1, 7) for x in batches]).astype(np.float64)
    assert statistics.seen == len(everything)
    np.testing.assert_allclose(statistics.mean, everything.mean(0), atol=2e-6 * abs(offset).max())
    np.testing.assert_allclose(statistics.variance, everything.var(0), rtol=5e-3)
    seen = standardise(statistics, everything.astype(np.float32), 10.0)
    np.testing.assert_allclose(seen.std(0), 1.0, rtol=1e-2)


def test_bytes_are_standardised_pixel_by_pixel_and_a_static_background_vanishes():
    rng = np.random.default_rng(1)
    images = np.full((8, 16, 5, 5, 3), 90, np.uint8)
    images[..., 2, 2, :] = rng.integers(0, 256, (8, 16, 3))
    statistics = update_statistics(init_statistics(jnp.zeros((5, 5, 3))), jnp.asarray(images))
    seen = np.asarray(standardise(statistics, jnp.asarray(images), 10.0))
    assert seen.dtype == np.float32
    moving = np.zeros((5, 5), bool)
    moving[2, 2] = True
    np.testing.assert_allclose(seen[..., ~moving, :], 0.0, atol=1e-2)
    as_floats = images.astype(np.float64) / 255.0
    variance = as_floats[..., 2, 2, :].var((0, 1))
    wanted = np.sqrt(variance / (variance + 1e-3))
    np.testing.assert_allclose(seen[..., 2, 2, :].std((0, 1)), wanted, rtol=1e-4)
    np.testing.assert_allclose(statistics.mean, as_floats.mean((0, 1)), atol=1e-6)
    np.testing.assert_allclose(statistics.variance, as_floats.var((0, 1)), atol=1e-6)


def test_a_pixel_that_never_changed_counts_as_one_that_changed_little():
    images = jnp.full((4, 8, 1), 90, jnp.uint8)
    statistics = update_statistics(init_statistics(jnp.zeros(1)), images)
    # A variance of 1e-3 is a deviation of eight steps of 255.
    seen = standardise(statistics, jnp.full((1,), 98, jnp.uint8), 10.0)
    np.testing.assert_allclose(seen, 8.0 / 255.0 / np.sqrt(1e-3), rtol=1e-4)


def test_what_was_never_seen_is_clipped():
    statistics = update_statistics(init_statistics(jnp.zeros(1)), jnp.zeros((3, 4, 1)))
    assert float(standardise(statistics, jnp.ones(1), 4.0)[0]) == 4.0


def test_a_sharded_batch_has_the_statistics_of_the_whole():
    x = np.random.default_rng(2).normal(size=(8, 3, 2)).astype(np.float32)
    mesh = Mesh(np.array(jax.devices()[:8]), ("data",))
    sharded = jax.device_put(x, NamedSharding(mesh, P("data")))
    start = init_statistics(jnp.zeros(2))
    alone, together = update_statistics(start, x), jax.jit(update_statistics)(start, sharded)
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_tree_of_observations_has_statistics_of_each_part():
    parts = {"near": jnp.ones((2, 3, 4)), "far": jnp.arange(6.0).reshape(2, 3)}
    one = jax.tree.map(lambda x: x[0, 0], parts)
    statistics = update_statistics(init_statistics(one), parts)
    np.testing.assert_allclose(statistics.mean["far"], 2.5)
    np.testing.assert_allclose(statistics.variance["far"], 35.0 / 12.0, rtol=1e-6)
    np.testing.assert_allclose(statistics.variance["near"], 0.0)
