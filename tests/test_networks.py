"""Networks: shapes, memory that is wiped where an episode begins, and the shared look-ahead."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from muesli import presets
from muesli.agent import look_ahead
from muesli.config import NetworkConfig
from muesli.networks import make_network
from muesli.networks.layers import BoardConv
from muesli.networks.network import UnrollInputs
from muesli.types import EnvSpec

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
    "mlp-continuous": (CONTINUOUS, replace(SMALL, torso="mlp", torso_channels=(9,))),
    "conv_small": (BOARD, replace(SMALL, torso="conv_small", torso_channels=(6, 6))),
    "impala": (IMAGE, replace(SMALL, torso="impala", torso_channels=(4, 8))),
    "impala-bf16": (
        IMAGE,
        replace(SMALL, torso="impala", torso_channels=(4, 8), compute_dtype="bfloat16"),
    ),
    "muzero-board": (
        BOARD,
        replace(SMALL, torso="muzero", model="muzero", core="none", downsample=False),
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


@pytest.fixture(scope="module", params=CASES)
def case(request):
    spec, config = CASES[request.param]
    network = make_network(spec, config)
    params = jax.jit(network.init)(jax.random.key(0))
    # Output layers start near zero; spread them so that wrong wiring would show.
    params = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(x.size), x.shape),
                          params)  # fmt: skip
    return spec, config, network, params


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
    from flax import nnx

    layer = BoardConv(2, 5, jnp.float32, nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (3, 6, 7, 2))
    kernel = layer.product.kernel.get_value().reshape(3, 3, 2, 5)
    wanted = jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    np.testing.assert_allclose(layer(x), wanted, atol=1e-5)


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


def test_the_large_network_reduces_96_to_6():
    spec = EnvSpec((96, 96, 48), np.dtype(np.uint8), 18)
    network = make_network(spec, presets.atari_large().network)
    inputs = jax.eval_shape(lambda: inputs_for(spec, 1, 2))
    params = jax.eval_shape(network.init, jax.random.key(0))
    root, _ = jax.eval_shape(network.unroll, params, inputs, ())
    assert root.embedding.shape == (1, 2, 6, 6, 256)
