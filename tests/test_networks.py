"""Networks: shapes, memory that is wiped where an episode begins, and the shared look-ahead."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.test_util import check_grads

from muesli import presets
from muesli.agent import look_ahead
from muesli.config import Config, ConfigError, NetworkConfig, validate
from muesli.networks import layers, make_network
from muesli.networks.dynamics import Summary
from muesli.networks.layers import BoardConv, Lstm, WideLinear, max_pool
from muesli.networks.network import UnrollInputs, _Heads
from muesli.networks.torsos import highest, scale_planes
from muesli.ops.values import Support, cross_entropy, encode
from muesli.types import EnvSpec, Frequencies

replace = dataclasses.replace
SMALL = NetworkConfig(
    torso_units=12, core_units=10, model_units=14, value_bins=11, value_max=5.0, reward_bins=7,
    reward_max=3.0, blocks=1, model_planes=8, head_planes=4,
)  # fmt: skip
VECTOR = EnvSpec((5,), np.dtype(np.float32), 3)
BOARD = EnvSpec((5, 5, 2), np.dtype(np.bool_), 26, legal_actions=True)
IMAGE = EnvSpec((24, 24, 3), np.dtype(np.uint8), 4)
CONTINUOUS = EnvSpec((5,), np.dtype(np.float32), None, action_size=2)

CASES = {
    "mlp": (VECTOR, replace(SMALL, torso="mlp", torso_channels=(9,))),
    "mlp-feedforward": (VECTOR, replace(SMALL, torso="mlp", torso_channels=(), core="none")),
    "mlp-no-context": (
        VECTOR,
        replace(SMALL, torso="mlp", torso_channels=(9,), last_action_and_reward=False),
    ),
    "mlp-plain-heads": (
        VECTOR,
        replace(SMALL, torso="mlp", torso_channels=(), core="none", hidden_heads=False),
    ),
    "mlp-continuous": (CONTINUOUS, replace(SMALL, torso="mlp", torso_channels=(9,))),
    "conv_small": (BOARD, replace(SMALL, torso="conv_small", torso_channels=(6, 6))),
    "dqn": (IMAGE, replace(SMALL, torso="dqn", torso_channels=(4, 8, 8))),
    "impala": (IMAGE, replace(SMALL, torso="impala", torso_channels=(4, 8))),
    "impala-bf16": (
        IMAGE,
        replace(SMALL, torso="impala", torso_channels=(4, 8), compute_dtype="bfloat16"),
    ),
    "muzero-board": (
        BOARD,
        replace(SMALL, torso="muzero", model="muzero", core="none", downsample=False),
    ),
    "muzero-points": (
        BOARD,
        replace(
            SMALL,
            torso="muzero",
            model="muzero",
            core="none",
            downsample=False,
            point_policy=True,
        ),
    ),
    "muzero-image": (IMAGE, replace(SMALL, torso="muzero", model="muzero", core="none")),
}


def inputs_for(spec: EnvSpec, steps: int, batch: int, seed: int = 0) -> UnrollInputs:
    keys = jax.random.split(jax.random.key(seed), 5)
    shape = (steps, batch, *spec.observation_shape)
    if spec.observation_dtype == np.uint8:
        observation = jax.random.randint(keys[0], shape, 0, 256).astype(jnp.uint8)
    elif spec.observation_dtype == np.bool_:
        observation = jax.random.bernoulli(keys[0], 0.3, shape)
    else:
        observation = jax.random.normal(keys[0], shape)
    legal = None
    if spec.legal_actions:
        legal = jax.random.bernoulli(keys[1], 0.7, (steps, batch, spec.num_actions))
        legal = legal.at[..., -1].set(True)
    return UnrollInputs(
        observation, legal, actions_for(spec, (steps, batch), seed),
        jax.random.normal(keys[3], (steps, batch)),
        jax.random.bernoulli(keys[4], 0.2, (steps, batch)),
    )  # fmt: skip


def actions_for(spec: EnvSpec, shape, seed=1):
    key = jax.random.key(seed)
    if spec.num_actions is None:
        return jax.random.uniform(key, (*shape, spec.action_size), minval=-1.0, maxval=1.0)
    return jax.random.randint(key, shape, 0, spec.num_actions)


def flat(tree):
    return jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), tree)


def spread_out(params):
    """Output layers start near zero; spread them so that wrong wiring would show."""
    return jax.tree.map(
        lambda x: x + 0.1 * jax.random.normal(jax.random.key(x.size), x.shape), params
    )


@pytest.fixture(scope="module", params=CASES)
def case(request):
    spec, config = CASES[request.param]
    network = make_network(spec, config)
    return spec, config, network, spread_out(jax.jit(network.init)(jax.random.key(0)))


def test_unroll_and_model_have_the_promised_shapes(case):
    spec, config, network, params = case
    inputs = inputs_for(spec, 4, 3)
    root, state = jax.jit(network.unroll)(params, inputs, network.initial_state(3))
    assert root.value_logits.shape == (4, 3, config.value_bins)
    assert root.value_logits.dtype == jnp.float32
    if spec.num_actions is None:
        assert root.policy.loc.shape == (4, 3, spec.action_size)
    else:
        assert root.policy.logits.shape == (4, 3, spec.num_actions)
    if spec.legal_actions:
        assert (np.asarray(root.policy.probs())[~np.asarray(inputs.legal_actions)] == 0.0).all()
    assert jax.tree.structure(state) == jax.tree.structure(network.initial_state(3))
    output = network.model_step(params, flat(root.embedding), actions_for(spec, (12,)))
    assert output.reward_logits.shape == (12, config.reward_bins)
    assert output.value_logits.shape == (12, config.value_bins)
    assert jax.tree.map(jnp.shape, output.embedding) == jax.tree.map(
        jnp.shape, flat(root.embedding)
    )
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(params))


def test_looking_ahead_at_many_actions_equals_one_model_step_each(case):
    spec, config, network, params = case
    root, _ = network.unroll(params, inputs_for(spec, 2, 3), network.initial_state(3))
    embedding, actions = flat(root.embedding), actions_for(spec, (6, 4))
    rewards, values = jax.jit(network.look_ahead)(params, embedding, actions)
    tolerance = 0.05 if config.compute_dtype == "bfloat16" else 1e-4
    for k in range(4):
        one = network.model_step(params, embedding, actions[:, k])
        np.testing.assert_allclose(rewards[:, k], one.reward_logits, atol=tolerance)
        np.testing.assert_allclose(values[:, k], one.value_logits, atol=tolerance)


def test_memory_is_wiped_at_first_and_carried_otherwise(case):
    spec, config, network, params = case
    inputs = inputs_for(spec, 6, 2)._replace(first=jnp.zeros((6, 2), bool))
    unroll = jax.jit(network.unroll)
    whole, _ = unroll(params, inputs, network.initial_state(2))
    # In two halves, with the state handed over, nothing changes.
    half = lambda a, b: jax.tree.map(lambda x: x[a:b], inputs)
    first, state = unroll(params, half(0, 3), network.initial_state(2))
    second, _ = unroll(params, half(3, 6), state)
    joined = jnp.concatenate([first.value_logits, second.value_logits])
    tolerance = 0.05 if config.compute_dtype == "bfloat16" else 1e-4
    np.testing.assert_allclose(joined, whole.value_logits, atol=tolerance)
    # An episode that begins at 3 knows nothing of what went before: neither state nor context.
    begun = inputs._replace(first=inputs.first.at[3].set(True))
    after, _ = unroll(params, begun, network.initial_state(2))
    fresh_inputs = half(3, 6)._replace(first=half(3, 6).first.at[0].set(True))
    fresh, _ = unroll(params, fresh_inputs, network.initial_state(2))
    np.testing.assert_allclose(after.value_logits[3:], fresh.value_logits, atol=tolerance)
    if config.core == "lstm" or config.last_action_and_reward:
        assert np.abs(after.value_logits[3:] - whole.value_logits[3:]).max() > 1e-3


def test_first_predictions_are_zero_and_the_first_policy_is_uniform():
    from muesli.agent import supports
    from muesli.ops.values import decode

    config = presets.catch()
    network = make_network(VECTOR, replace(config.network, value_bins=601, value_max=300.0))
    params = network.init(jax.random.key(0))
    root, _ = network.unroll(params, inputs_for(VECTOR, 1, 50), network.initial_state(50))
    wide = replace(config, network=replace(config.network, value_bins=601, value_max=300.0))
    assert np.abs(decode(root.value_logits, supports(wide)[1])).max() < 0.1
    assert np.abs(root.policy.probs() - 1 / 3).max() < 0.05


def test_q_is_reward_plus_discounted_value_in_real_units():
    """q̂ = r̂ + γ v̂ with certain predictions: reward 2, value −3 → 2 − 0.9·3 = −0.7."""
    from muesli.agent import supports
    from muesli.ops.values import encode

    config = presets.catch()
    config = replace(config, agent=replace(config.agent, discount=0.9))
    reward_support, value_support = supports(config)
    certain = lambda x, s: jnp.log(encode(jnp.full((2, 3), x), s) + 1e-30)
    network = make_network(VECTOR, config.network)._replace(
        look_ahead=lambda *_: (certain(2.0, reward_support), certain(-3.0, value_support))
    )
    q = look_ahead(network, config, None, None, None)
    np.testing.assert_allclose(q, -0.7, atol=1e-4)
    direct = replace(config, model=replace(config.model, q_model="direct"))
    np.testing.assert_allclose(look_ahead(network, direct, None, None, None), -3.0, atol=1e-4)


def test_a_board_convolution_is_a_convolution():
    layer = BoardConv(2, 5, jnp.float32, nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (3, 6, 7, 2))
    kernel = layer.product.kernel.get_value().reshape(3, 3, 2, 5)
    wanted = jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    np.testing.assert_allclose(layer(x), wanted, atol=1e-5)


def xla_max_pool(x):
    return nnx.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")


def pool_inputs(shape, dtype, ties: bool):
    """Numbers that are all different, or of which many are equal. x and a cotangent."""
    height, width = (-(-n // 2) for n in shape[1:3])
    key_x, key_g = jax.random.split(jax.random.key(sum(shape)))
    if ties:
        x = jax.nn.relu(jax.random.randint(key_x, shape, -3, 3))
    else:
        # 256 whole numbers per plane are all that bfloat16 tells apart.
        numbers = jnp.broadcast_to(
            jnp.arange(shape[1] * shape[2]), (shape[0], shape[3], shape[1] * shape[2])
        )
        x = jax.random.permutation(key_x, numbers, axis=2, independent=True) - 100
        x = jnp.moveaxis(x, 1, 2).reshape(shape)
    g = jax.random.randint(key_g, (shape[0], height, width, shape[3]), -8, 8)
    return x.astype(dtype), g.astype(dtype)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float64])
@pytest.mark.parametrize("size", [(12, 12), (7, 11), (6, 7), (2, 1)])
def test_max_pool_and_its_gradient_are_xlas(size, dtype):
    """Exactly: the cotangents are small whole numbers, whose sums no type rounds."""

    def value_and_gradient(pool):
        def both(x, g):
            value, pull = jax.vjp(pool, x)
            return value, pull(g)[0]

        return jax.jit(both)

    with jax.enable_x64(dtype == jnp.float64):
        for ties in (False, True):
            x, g = pool_inputs((3, *size, 4), dtype, ties)
            value, gradient = value_and_gradient(max_pool)(x, g)
            wanted_value, wanted_gradient = value_and_gradient(xla_max_pool)(x, g)
            assert value.dtype == gradient.dtype == dtype
            np.testing.assert_array_equal(value, wanted_value)
            np.testing.assert_array_equal(gradient, wanted_gradient)


def test_max_pool_under_vmap_and_numerically():
    gradient = lambda pool: jax.grad(lambda x: jnp.sum(jnp.sin(pool(x))))
    x = jax.random.normal(jax.random.key(0), (2, 3, 9, 8, 4))
    mapped = jax.jit(jax.vmap(gradient(max_pool), in_axes=1, out_axes=2))(x)
    wanted = jax.vmap(gradient(xla_max_pool), in_axes=1, out_axes=2)(x)
    np.testing.assert_allclose(mapped, wanted, atol=1e-6)
    # Numbers at least 1 apart, so that no small step changes the winner.
    far, _ = pool_inputs((1, 7, 6, 2), jnp.float32, ties=False)
    check_grads(lambda x: jnp.sin(max_pool(x) / 10), (far,), order=1, modes=["rev"], eps=1e-1)


def test_max_pool_keeps_one_byte_per_maximum_and_scatters_nothing():
    x = jnp.zeros((2, 8, 8, 4), jnp.bfloat16)
    _, pull = jax.vjp(max_pool, x)
    kept = [(r.shape, r.dtype) for r in jax.tree.leaves(pull) if r.ndim]
    assert kept == [((2, 4, 4, 4), jnp.uint8)]
    both = lambda x, g: jax.vjp(max_pool, x)[1](g)
    assert "scatter" not in jax.jit(both).lower(x, jnp.zeros((2, 4, 4, 4), x.dtype)).as_text()


def test_a_wide_layer_multiplies_in_bfloat16_and_adds_in_float32():
    narrow = WideLinear(64, 8, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    narrow.bias.set_value(jnp.linspace(-300.0, 0.3, 8))
    x = jax.random.normal(jax.random.key(1), (3, 5, 64))
    rounded = lambda x: x.astype(jnp.bfloat16).astype(jnp.float32)
    wanted = rounded(x) @ rounded(narrow.kernel[...]) + narrow.bias[...]
    assert narrow(x).dtype == jnp.float32
    np.testing.assert_allclose(narrow(x), wanted, atol=1e-4)
    # The products of the gradient too have operands of one type, and that is bfloat16.
    state = nnx.state(narrow)
    loss = lambda state, x: jnp.sum(nnx.merge(nnx.graphdef(narrow), state)(x) ** 2)
    gradients = jax.make_jaxpr(jax.grad(loss, (0, 1)))(state, x)
    products = [e for e in gradients.jaxpr.eqns if e.primitive.name == "dot_general"]
    assert len(products) >= 3
    assert {v.aval.dtype.name for e in products for v in e.invars} == {"bfloat16"}


@pytest.mark.parametrize("size", [None, 1, 3])
@pytest.mark.parametrize(
    ("rows", "inputs", "units"),
    [(64, 96, 32), pytest.param(25_000, 2592, 256, marks=pytest.mark.gpu)],
)
def test_weights_before_a_normalisation_are_not_moved_together(rows, inputs, units, size):
    """It takes the mean over the units out: what all of them share has no gradient.

    size: of a convolution over the rows as planes; None is a dense layer.
    """
    kind = layers.linear if size is None else partial(layers.conv, size=size)
    graph, state = nnx.split(kind(inputs, units, dtype=jnp.bfloat16, rngs=nnx.Rngs(0)))
    shape = (rows, inputs) if size is None else (rows // 4, 2, 2, inputs)
    x = jax.nn.relu(jax.random.normal(jax.random.key(1), shape))
    wanted = jax.random.normal(jax.random.key(2), (units, 5)) / np.sqrt(units)

    def loss(state):
        y = jax.nn.relu(layers.centre_and_scale(nnx.merge(graph, state)(x)))
        return jnp.mean(jax.nn.logsumexp(y.astype(jnp.float32) @ wanted, axis=-1))

    gradient = jax.jit(jax.grad(loss))(state)["kernel"][...]
    shared = jnp.mean(gradient, axis=-1)
    assert jnp.linalg.norm(gradient) > 1e-4
    assert jnp.sqrt(jnp.mean(shared**2)) < 0.02 * jnp.sqrt(jnp.mean(gradient**2))
    # The product for the weights may not compute its gradient anew.
    assert "optimization_barrier" in str(jax.make_jaxpr(jax.grad(loss))(state))


def test_a_wide_layer_in_float32_is_a_dense_layer():
    wide = WideLinear(6, 5, dtype=jnp.float32, rngs=nnx.Rngs(3))
    plain = nnx.Linear(6, 5, dtype=jnp.float32, rngs=nnx.Rngs(3))
    x = jax.random.normal(jax.random.key(1), (2, 4, 6))
    loss = lambda layer, x: jnp.sum(jnp.sin(layer(x)))
    for a, b in zip(
        jax.tree.leaves(nnx.grad(loss, argnums=(0, 1))(wide, x)),
        jax.tree.leaves(nnx.grad(loss, argnums=(0, 1))(plain, x)),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(wide(x), plain(x))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_row_looked_up_is_the_answer_to_a_one_hot_vector(dtype):
    wide = WideLinear(100, 8, dtype=dtype, rngs=nnx.Rngs(0))
    wide.bias[...] = jax.random.normal(jax.random.key(1), (8,))
    index = jnp.array([[3, 99], [0, 3]])
    state = nnx.state(wide, nnx.Param)

    def answer(params, looked_up):
        layer = nnx.merge(nnx.graphdef(wide), params)
        return layer.look_up(index) if looked_up else layer(jax.nn.one_hot(index, 100))

    np.testing.assert_array_equal(answer(state, True), answer(state, False))
    slopes = [
        jax.grad(lambda p, x=x: jnp.sum(jnp.square(answer(p, x))))(state) for x in (True, False)
    ]
    tolerance = 1e-5 if dtype == jnp.float32 else 0.02
    for a, b in zip(*map(jax.tree.leaves, slopes), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=1e-6)


def test_gates_are_summed_in_float32():
    lstm = Lstm(6, 5, jnp.bfloat16, nnx.Rngs(0))
    for product in lstm.from_input(jnp.full((2, 6), 0.3)), lstm.from_hidden(jnp.full((2, 5), 0.7)):
        assert product.dtype == jnp.float32
        assert np.any(product != product.astype(jnp.bfloat16))


def test_bfloat16_predictions_are_near_float32_ones_and_not_rounded():
    spec, config = CASES["impala-bf16"]
    # So many bins that a bias rounded to bfloat16 would be off by one.
    config = replace(config, value_bins=601, value_max=300.0, reward_bins=601, reward_max=300.0)

    def predict(dtype):
        network = make_network(spec, replace(config, compute_dtype=dtype))

        @jax.jit
        def everything(params):
            root, _ = network.unroll(params, inputs_for(spec, 4, 3), network.initial_state(3))
            root = flat(root)
            model = network.model_step(params, root.embedding, actions_for(spec, (12,)))
            ahead = network.look_ahead(params, root.embedding, actions_for(spec, (12, 4)))
            return (
                root.policy.logits, root.value_logits, *ahead,
                model.policy.logits, model.value_logits, model.reward_logits,
            )  # fmt: skip

        params = jax.jit(network.init)(jax.random.key(0))
        return everything(spread_out(params))

    for narrow, wide in zip(predict("bfloat16"), predict("float32"), strict=True):
        assert narrow.dtype == jnp.float32
        assert np.any(narrow != narrow.astype(jnp.bfloat16))
        # In per cent of how much predictions differ from state to state.
        assert np.std(narrow - wide) < 0.05 * np.std(wide - wide.mean(0))


@pytest.mark.parametrize(
    ("channels", "size", "flat_size"),
    [((64, 128, 128, 64), 96, 6 * 6 * 64), ((16, 32, 32), 84, 11 * 11 * 32)],
)
def test_the_papers_and_impalas_own_channel_counts(channels, size, flat_size):
    spec = EnvSpec((size, size, 3), np.dtype(np.uint8), 18)
    network = make_network(spec, NetworkConfig(torso_channels=channels))
    params = jax.eval_shape(network.init, jax.random.key(0))
    assert params["torso"]["out"]["kernel"].shape == (flat_size, 512)
    assert params["dynamics"]["lstm"]["from_hidden"]["kernel"].shape == (1024, 4096)
    assert params["core"]["from_hidden"]["kernel"].shape == (512, 2048)


def test_dqns_windows_and_what_is_left_of_a_picture():
    spec = EnvSpec((64, 60, 4), np.dtype(np.uint8), 18)
    config = NetworkConfig(torso="dqn", torso_channels=(16, 32, 33), torso_units=256)
    params = jax.eval_shape(make_network(spec, config).init, jax.random.key(0))["torso"]
    kernels = [params["convs"][i]["kernel"].shape for i in range(3)]
    assert kernels == [(8, 8, 4, 16), (4, 4, 16, 32), (3, 3, 32, 33)]
    # 64 and 60 by strides of 4 and 2, padded: 16 and 15, then 8 and 8.
    assert params["out"]["kernel"].shape == (8 * 8 * 33, 256)


def test_the_large_network_reduces_96_to_6():
    spec = EnvSpec((96, 96, 48), np.dtype(np.uint8), 18)
    network = make_network(spec, presets.atari_large().network)
    inputs = jax.eval_shape(lambda: inputs_for(spec, 1, 2))
    params = jax.eval_shape(network.init, jax.random.key(0))
    root, _ = jax.eval_shape(network.unroll, params, inputs, ())
    assert root.embedding.shape == (1, 2, 6, 6, 256)


def test_the_gradient_of_a_bias_is_summed_in_float32():
    dtype = jnp.bfloat16
    layer = layers.conv(1, 2, 3, dtype, nnx.Rngs(0))
    x = jnp.zeros((50, 64, 64, 1), dtype)
    total = lambda bias: layers._add_bias(layer(x), bias).astype(jnp.float32).sum()
    # 204,800 ones: in bfloat16 a sum stops growing at 256.
    np.testing.assert_array_equal(jax.grad(total)(jnp.zeros(2)), [204_800.0, 204_800.0])
    graph, state = nnx.split(layer)
    through = jax.grad(lambda s: nnx.merge(graph, s)(x).astype(jnp.float32).sum())(state)
    np.testing.assert_array_equal(through["bias"][...], [204_800.0, 204_800.0])


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("height", [7, 20])  # of a board, and of more than one
def test_dense_and_convolutional_layers_are_those_of_flax(height, stride, size):
    x = jax.random.normal(jax.random.key(0), (3, height, 6, 4))
    ours = layers.conv(4, 5, size, jnp.float32, nnx.Rngs(1), stride)
    theirs = nnx.Conv(4, 5, (size, size), strides=(stride, stride), rngs=nnx.Rngs(1))
    loss = lambda layer, x: jnp.sum(jnp.sin(layer(x)))
    # On boards a CPU adds the same numbers up in another order.
    check = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    (np.testing.assert_array_equal if height == 20 or stride == 2 else check)(ours(x), theirs(x))
    for a, b in zip(*(jax.tree.leaves(nnx.grad(loss, argnums=(0, 1))(layer, x))
                      for layer in (ours, theirs)), strict=True):  # fmt: skip
        check(a, b)
    dense = layers.linear(4, 5, jnp.float32, nnx.Rngs(1))
    np.testing.assert_array_equal(dense(x), nnx.Linear(4, 5, rngs=nnx.Rngs(1))(x))


def test_the_last_action_enters_as_small_as_one_input_among_the_features():
    spec = EnvSpec((8, 8, 3), np.dtype(np.uint8), 18)
    config = NetworkConfig(torso_channels=(4,), torso_units=493, core_units=8, model_units=8)
    kernel = make_network(spec, config).init(jax.random.key(0))["extra"]["kernel"]
    # 18 actions and the reward beside 493 features: a variance of 1 / 512.
    np.testing.assert_allclose(np.var(kernel), 1 / 512, rtol=0.05)


def core_outputs(units, skip=False, normalise=False, deaf=False):
    """Features [T, B, units] of an LSTM core over five random records; deaf: to its input."""
    spec = EnvSpec((4,), np.dtype(np.float32), 3)
    config = NetworkConfig(
        torso="mlp", torso_channels=(), torso_units=units, core_units=units, model_units=units,
        core_skip=skip, normalise_core=normalise,
    )  # fmt: skip
    network = make_network(spec, config)
    params = network.init(jax.random.key(0))
    # The model's first cell is a linear map of the core's output: here, that output itself.
    params["dynamics"]["enter"] = {"kernel": jnp.eye(units), "bias": jnp.zeros(units)}
    if deaf:
        params["core"] = jax.tree.map(jnp.zeros_like, params["core"])
    inputs = UnrollInputs(
        jax.random.normal(jax.random.key(1), (5, 2, 4)), None, jnp.zeros((5, 2), jnp.int32),
        jnp.zeros((5, 2)), jnp.zeros((5, 2), bool),
    )  # fmt: skip
    root, _ = network.unroll(params, inputs, network.initial_state(2))
    return root.embedding[0]


def test_a_normalised_core_puts_out_features_of_scale_one():
    scale = lambda x: np.sqrt(np.mean(np.square(x), -1))
    np.testing.assert_allclose(scale(core_outputs(32, normalise=True)), 1.0, rtol=1e-3)
    assert scale(core_outputs(32)).max() < 0.5


def test_around_the_core_its_input_is_added_to_its_output():
    read = core_outputs(32, skip=True, deaf=True)
    assert np.abs(read).max() > 0.5
    np.testing.assert_array_equal(core_outputs(32, deaf=True), 0.0)
    np.testing.assert_allclose(core_outputs(32, skip=True), core_outputs(32) + read, rtol=1e-5)


def test_value_and_reward_heads_start_at_the_configured_scale_and_the_policy_near_zero():
    spec = EnvSpec((4,), np.dtype(np.float32), 18)
    base = NetworkConfig(torso="mlp", torso_channels=(), torso_units=8, core_units=256)
    for scale in (0.01, 1.0):
        config = dataclasses.replace(base, value_head_scale=scale)
        params = make_network(spec, config).init(jax.random.key(0))
        for heads, inputs in (("root_heads", 256), ("model_heads", config.model_units)):
            kernels = {n: p["kernel"] for n, p in params[heads].items() if n.endswith("_head")}
            for name, kernel in kernels.items():
                wanted = 0.01 if name == "policy_head" else scale
                np.testing.assert_allclose(np.std(kernel), wanted / np.sqrt(inputs), rtol=0.05)


def test_the_model_hears_actions_as_loudly_as_configured_however_many_there_are():
    base = NetworkConfig(torso="mlp", torso_channels=(), torso_units=8, model_units=256)
    for actions, scale in ((2, 1.0), (18, 1.0), (18, 0.3)):
        config = dataclasses.replace(base, model_action_scale=scale)
        spec = EnvSpec((4,), np.dtype(np.float32), actions)
        params = make_network(spec, config).init(jax.random.key(0))
        kernel = params["dynamics"]["lstm"]["from_input"]["kernel"]
        np.testing.assert_allclose(np.std(kernel), scale, rtol=0.05)


def test_each_head_of_the_model_has_a_hidden_layer_of_its_own():
    network = make_network(*CASES["mlp-feedforward"])
    params = spread_out(jax.jit(network.init)(jax.random.key(0)))
    assert not params["root_heads"].get("hidden")

    @jax.jit
    def predictions(hidden):
        changed = params | {"model_heads": params["model_heads"] | {"hidden": hidden}}
        root, _ = network.unroll(changed, inputs_for(VECTOR, 1, 4), network.initial_state(4))
        embedding = jax.tree.map(lambda x: x[0], root.embedding)
        model = network.model_step(changed, embedding, jnp.array([0, 1, 2, 0]))
        return {
            "policy": model.policy.logits, "value": model.value_logits,
            "reward": model.reward_logits,
        }  # fmt: skip

    hidden = params["model_heads"]["hidden"]
    assert hidden.keys() == {"policy", "value", "reward"}
    before = predictions(hidden)
    for name in hidden:
        # Units that are silent leave the output layer its bias, in this head alone.
        silent = hidden | {name: jax.tree.map(lambda x: x - 100.0, hidden[name])}
        after = predictions(silent | {name: silent[name] | {"kernel": hidden[name]["kernel"]}})
        bias = params["model_heads"][f"{name}_head"]["bias"]
        wanted = bias - jax.nn.logsumexp(bias) if name == "policy" else bias
        got = after[name]
        if name == "policy":
            got = got - jax.nn.logsumexp(got, axis=-1, keepdims=True)
        np.testing.assert_allclose(got, jnp.broadcast_to(wanted, got.shape), atol=1e-6)
        for other in hidden.keys() - {name}:
            np.testing.assert_array_equal(after[other], before[other])


def test_heads_of_real_states_may_have_hidden_layers_too():
    spec, config = CASES["mlp-feedforward"]
    network = make_network(spec, replace(config, hidden_root_heads=True))
    params = spread_out(jax.jit(network.init)(jax.random.key(0)))
    hidden = params["root_heads"]["hidden"]
    assert hidden.keys() == {"policy", "value"}

    @jax.jit
    def predictions(hidden):
        changed = params | {"root_heads": params["root_heads"] | {"hidden": hidden}}
        root, _ = network.unroll(changed, inputs_for(VECTOR, 1, 4), network.initial_state(4))
        return {"policy": root.policy.log_probs()[0], "value": root.value_logits[0]}

    before = predictions(hidden)
    for name, other in (("policy", "value"), ("value", "policy")):
        silent = hidden[name] | {"bias": jnp.full_like(hidden[name]["bias"], -1e3)}
        after = predictions(hidden | {name: silent})
        bias = params["root_heads"][f"{name}_head"]["bias"]
        wanted = jax.nn.log_softmax(bias) if name == "policy" else bias
        wanted = jnp.broadcast_to(wanted, after[name].shape)
        np.testing.assert_allclose(after[name], wanted, atol=1e-5)
        np.testing.assert_array_equal(after[other], before[other])
    boards = make_network(
        CASES["muzero-image"][0], replace(CASES["muzero-image"][1], hidden_root_heads=True)
    )
    assert not jax.eval_shape(boards.init, jax.random.key(0))["root_heads"].get("hidden")


INFORMED = replace(
    SMALL, torso="mlp", torso_channels=(), value_head_scale=1.0, value_head_prior_rate=0.05
)
FLOORS = (jnp.zeros(()), jnp.zeros(()))


def _seen(records: int) -> UnrollInputs:
    observation = jax.random.normal(jax.random.key(3), (1, records, 5))
    nothing = jnp.zeros((1, records))
    return UnrollInputs(
        observation, None, nothing.astype(jnp.int32), nothing, jnp.ones((1, records), bool)
    )


def test_informed_heads_add_the_log_frequencies_they_were_told():
    network = make_network(VECTOR, INFORMED)
    before = jax.jit(network.init)(jax.random.key(0))
    value = np.full(11, 0.0)
    value[7], value[8] = 0.75, 0.25
    reward = np.full(7, 1 / 7)
    following = np.roll(value, -4)
    frequencies = Frequencies(*map(jnp.array, (reward, value, following)), *FLOORS)
    told = network.expect(before, frequencies, jnp.float32(1))
    for heads, wanted in (("root_heads", value), ("model_heads", following)):
        np.testing.assert_allclose(told[heads]["value_head"]["frequencies"], wanted, atol=1e-7)
    np.testing.assert_allclose(told["model_heads"]["reward_head"]["frequencies"], reward, atol=1e-7)

    # The logits move by just that, in reality, in the model and one step ahead: of what was heard
    # nearly all, of every bin's equal chance a millionth.
    @jax.jit
    def values(params):
        root, _ = network.unroll(params, _seen(4), network.initial_state(4))
        embedding = jax.tree.map(lambda x: x[0], root.embedding)
        actions = jnp.array([0, 1, 2, 0])
        step = network.model_step(params, embedding, actions).value_logits
        ahead = network.look_ahead(params, embedding, actions[:, None])[1][:, 0]
        return jnp.stack([root.value_logits[0], step, ahead])

    moved = values(told) - values(before)
    # At first it was 0 that nearly always occurred.
    start, root, model = (
        np.log((1 - 1e-6) * seen + 1e-6 / 11) for seen in (np.arange(11) == 5, value, following)
    )
    np.testing.assert_allclose(moved[0], np.broadcast_to(root - start, (4, 11)), atol=1e-5)
    np.testing.assert_allclose(moved[1:], np.broadcast_to(model - start, (2, 4, 11)), atol=1e-5)
    # Nothing else has changed.
    same = jax.tree.map(np.array_equal, before, told)
    assert {p[-1].key for p, kept in jax.tree.leaves_with_path(same) if not kept} == {"frequencies"}


def test_informed_heads_follow_slowly_and_no_gradient_moves_them():
    network = make_network(VECTOR, INFORMED)
    params = jax.jit(network.init)(jax.random.key(0))
    params["root_heads"]["value_head"]["frequencies"] = jnp.full(11, 1 / 11)
    value = jnp.zeros(11).at[3].set(1.0)
    frequencies = Frequencies(jnp.full(7, 1 / 7), value, value, *FLOORS)
    told = jax.jit(network.expect)(params, frequencies, jnp.float32(0.1))
    wanted = 0.9 / 11 + 0.1 * np.asarray(value)
    np.testing.assert_allclose(told["root_heads"]["value_head"]["frequencies"], wanted, rtol=1e-5)

    def loss(params):
        root, _ = network.unroll(params, _seen(4), network.initial_state(4))
        embedding = jax.tree.map(lambda x: x[0], root.embedding)
        model = network.model_step(params, embedding, jnp.zeros(4, jnp.int32))
        return sum(
            jnp.sum(x[..., 2]) for x in (root.value_logits, model.value_logits, model.reward_logits)
        )

    gradients = jax.jit(jax.grad(loss))(params)
    heads = [gradients["root_heads"]["value_head"], *(
        gradients["model_heads"][name] for name in ("value_head", "reward_head")
    )]  # fmt: skip
    for head in heads:
        assert float(jnp.abs(head["frequencies"]).max()) == 0.0
        assert float(jnp.abs(head["kernel"]).max()) > 0.0


def test_values_far_from_zero_cost_uninformed_heads_their_features():
    """The network learns values around 80. What of its features still tells states apart?"""
    support = Support(-20.0, 20.0, 41)
    inputs = _seen(64)
    targets = 80.0 + 10.0 * inputs.observation[0, :, 0]
    of_targets = encode(targets, support)

    def variation(rate: float) -> float:
        config = replace(
            INFORMED, value_head_prior_rate=rate, core="none", torso_units=64, torso_channels=(64,),
            value_bins=41, value_max=20.0,
        )  # fmt: skip
        network = make_network(VECTOR, config)
        optimiser = optax.adam(1e-3)

        def loss(params):
            root, _ = network.unroll(params, inputs, network.initial_state(64))
            losses = cross_entropy(root.value_logits[0], targets, support)
            return losses.mean(), root.embedding

        @jax.jit
        def step(params, state):
            gradients, embedding = jax.grad(loss, has_aux=True)(params)
            updates, state = optimiser.update(gradients, state)
            params = optax.apply_updates(params, updates)
            if network.expect is not None:
                shares = of_targets.mean(0)
                frequencies = Frequencies(jnp.full(7, 1 / 7), shares, shares, *FLOORS)
                params = network.expect(params, frequencies, jnp.float32(rate))
            features = jax.tree.leaves(embedding)[0][0]
            return params, state, jnp.var(features, axis=0).mean() / jnp.mean(features**2)

        params = jax.jit(network.init)(jax.random.key(0))
        state = optimiser.init(params)
        for _ in range(150):
            params, state, varied = step(params, state)
        return float(varied)

    assert variation(0.0) < 0.5 * variation(0.5)


def test_scaled_planes_have_the_gradient_of_their_formula():
    def plain(x):
        low = jnp.min(x, axis=(-3, -2, -1), keepdims=True)
        high = jnp.max(x, axis=(-3, -2, -1), keepdims=True)
        return (x - low) / jnp.maximum(high - low, 1e-5)

    keys = jax.random.split(jax.random.key(0), 2)
    x, weights = (jax.random.normal(key, (8, 3, 3, 4)) for key in keys)
    ours, theirs = (
        jax.grad(lambda x, f=f: jnp.sum(weights * f(x)))(x) for f in (scale_planes, plain)
    )
    np.testing.assert_allclose(scale_planes(x), plain(x), rtol=1e-6)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_what_lies_at_a_point_adds_to_its_logit_and_to_no_other():
    spec, config = CASES["muzero-points"]
    heads = _Heads(14, spec, config, False, False, config.head_planes, nnx.Rngs(0))
    features, points = jax.random.normal(jax.random.key(1), (2, 14)), jnp.zeros((2, 25, 4))
    logits = lambda points: np.asarray(heads.policy(Summary(features, points)).log_probs())
    odds = lambda x: x - x[:, -1:]  # against a pass, which is no point
    dense = odds(logits(points))
    moved = odds(logits(points.at[1, 7].set(1.0))) - dense
    weights = np.asarray(heads.point_head.kernel[...])
    np.testing.assert_allclose(moved[1, 7], weights.sum(), rtol=1e-3)
    assert abs(weights.sum()) > 1e-3
    moved[1, 7] = 0.0
    np.testing.assert_allclose(moved, 0.0, atol=1e-6)


@pytest.mark.parametrize("normalised", [False, True])
def test_normalised_units_cannot_be_silenced_together(normalised):
    spec, config = CASES["muzero-board"]
    config = replace(config, normalise_features=normalised)
    network = make_network(spec, config)
    params = network.init(jax.random.key(0))
    inputs = inputs_for(spec, 1, 8)

    def values(params):
        return np.asarray(network.unroll(params, inputs, ())[0].value_logits)

    low = jax.tree.map(lambda x: x, params)
    low["dynamics"]["out"]["bias"] = low["dynamics"]["out"]["bias"] - 100.0
    silent = values(low)
    if normalised:
        np.testing.assert_allclose(silent, values(params), atol=1e-5)
        assert silent.std(axis=1).min() > 0.0 and np.ptp(silent[0], axis=0).max() > 1e-4
    else:
        assert np.ptp(silent[0], axis=0).max() == 0.0  # all states look the same


def test_only_boards_have_points():
    # Four actions, and 24x24 made smaller is 2x2: that makes no board of it.
    image = IMAGE, replace(CASES["muzero-image"][1], point_policy=True)
    with pytest.raises(ConfigError, match="network.point_policy: is for boards whose actions"):
        make_network(*image)
    with pytest.raises(ConfigError, match="network.point_policy: is for network.torso muzero"):
        validate(Config(network=replace(SMALL, torso="mlp", point_policy=True)))


def test_the_gradient_of_a_maximum_goes_to_one_place():
    # Equal maxima, as of a state that is constant: JAX would divide by their number.
    gradient = jax.grad(lambda x: jnp.sum(highest(x)))(jnp.ones((2, 3, 3, 4)))
    np.testing.assert_array_equal(jnp.sum(gradient, axis=(1, 2, 3)), [1.0, 1.0])
    assert float(gradient[:, 0, 0, 0].min()) == 1.0
