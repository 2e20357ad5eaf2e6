"""The learner, unrolling a sequence with the parameters that acted, says what the actor said.

Importance ratios, Retrace's traces and the recurrent state all stand on this: with equal parameters
π/π_b is 1 everywhere, whether a sequence comes fresh from the actors or out of the ring, and
whether or not episodes end inside it.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from muesli import presets
from muesli import replay as ring
from muesli.agent import unroll
from muesli.ops.moments import init_moment
from muesli.runners.anakin import make_anakin
from muesli.runners.mesh import lay_out
from muesli.runners.parts import build
from muesli.types import AgentState, is_first, is_last

replace = dataclasses.replace

# Compiling is all that takes time here.
QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}

# Episodes have 10 records in catch and 7 in recall: they end anywhere in a chunk.
ENVS, LENGTH, CHUNKS, ITERATIONS = 4, 6, 4, 8


def tiny(env: str, core: str, frame_stack: int):
    base = presets.catch()
    return replace(
        base,
        env=replace(base.env, name=env, num_envs=ENVS, frame_stack=frame_stack, reward_scale=0.5),
        network=replace(
            base.network,
            torso_units=8,
            core=core,
            core_units=8,
            model_units=8,
            last_action_and_reward=True,
            value_bins=5,
            value_max=2.0,
            reward_bins=5,
            reward_max=2.0,
        ),
        batch=replace(
            base.batch,
            batch_sequences=2 * ENVS,
            online_sequences=ENVS,
            sequence_length=LENGTH,
            replay_capacity_steps=CHUNKS * ENVS * LENGTH,
        ),
        model=replace(base.model, unroll_steps=2),
    )


def shaken(params, step, scale):
    """Parameters with something added that looks like noise."""
    flat, unravel = ravel_pytree(params)
    return unravel(flat + scale * jnp.sin(1.0 + step + 7.0 * jnp.arange(flat.size)))


class Run:
    """A run whose "update" shakes the acting parameters by ``agent.dual`` and reports how far the
    learner, before that, was from what the actors stored in the fresh sequences of its batch.
    """

    def __init__(self, env: str, core: str, frame_stack: int):
        self.parts = build(tiny(env, core, frame_stack))
        # Neither the newest chunk nor, with frame stacks, the oldest can be sampled.
        self.ages = set(range(1, CHUNKS if frame_stack == 1 else CHUNKS - 1))
        shapes = jax.eval_shape(self.parts.network.init, jax.random.key(0))

        def init(key):
            # Not the network's own start, whose heads are nearly zero and would hide every mistake.
            del key
            params = shaken(jax.tree.map(lambda x: jnp.zeros(x.shape), shapes), 0, 1.0)
            return AgentState(
                None, params, None, init_moment(), jnp.zeros(()), None, jnp.array(0), None
            )

        def update(state, batch, key):
            del key
            fresh = jax.tree.map(lambda x: x[:ENVS], batch)
            metrics = {"disagreement": jnp.max(self.disagreement(state.prior, fresh)[:, :-1])}
            metrics["update_skipped"] = jnp.zeros(())
            prior = shaken(state.prior, state.step, state.dual)
            return state._replace(prior=prior, step=state.step + 1), metrics

        agent = self.parts.agent._replace(init=init, update=update)
        anakin = make_anakin(self.parts._replace(agent=agent))
        jit = partial(jax.jit, compiler_options=QUICKLY)
        # As every later state lies: that it is compiled once.
        state = jax.eval_shape(anakin.init, jax.random.key(0))
        layout = lay_out(state, self.parts.topology.mesh)
        self._init = jit(anakin.init, out_shardings=layout)
        iterate = lambda state: anakin.iterate(state, 1)
        self._iterate = jit(iterate, out_shardings=(layout, None, None))
        self._sample = jit(
            lambda replay: ring.sample(replay, jax.random.key(1), 64, self.parts.stack)
        )
        self._disagreement = jit(self.disagreement)

    def disagreement(self, params, batch):
        """The largest difference of log-probabilities over all actions, [B, T + 1]."""
        says = unroll(self.parts.network, params, batch).policy.log_probs()
        return jnp.max(jnp.abs(says - batch.transitions.behaviour.log_probs()), axis=-1)

    def replayed(self, shake):
        """A sample of a run's ring that has gone round more than once, and who acted in each chunk.

        Fresh sequences are checked on the way.
        """
        state = self._init(jax.random.key(0))
        state = state._replace(
            agent=state.agent._replace(dual=jnp.float32(shake)),
            # Without weak types, which the next state has lost: that would compile it all again.
            env_states=jax.tree.map(lambda x: jnp.asarray(x, x.dtype), state.env_states),
        )
        acted = []
        for _ in range(ITERATIONS):
            acted.append(state.agent.prior)
            state, metrics, _ = self._iterate(state)
            assert float(metrics["disagreement"]) < 1e-5
        sample = self._sample(state.replay)
        kind = sample.batch.transitions.step_type[:, 1:-1]
        assert bool(jnp.any(is_first(kind))) and bool(jnp.any(is_last(kind)))
        assert float(jnp.abs(sample.batch.transitions.reward).max()) == 0.5
        return sample, acted

    def told(self, params, batch):
        return np.asarray(self._disagreement(params, batch))


@pytest.fixture(
    scope="module",
    params=[("catch", "none", 1), ("catch", "lstm", 3), ("recall", "lstm", 1)],
    ids=lambda x: f"{x[0]}-{x[1]}-stack{x[2]}",
)
def run(request):
    return Run(*request.param)


def test_fresh_and_replayed_sequences_agree_while_the_parameters_change(run):
    sample, acted = run.replayed(shake=0.1)
    ages = np.asarray(sample.age_chunks)
    assert set(ages) == run.ages
    for age in run.ages:
        chunk = ITERATIONS - 1 - age
        assert run.told(acted[chunk], sample.batch)[ages == age, :-1].max() < 1e-5
        # And not because everyone always agrees.
        assert run.told(acted[chunk - 1], sample.batch)[ages == age, :-1].max() > 1e-2


def test_with_frozen_parameters_even_the_bootstrap_record_agrees(run):
    sample, acted = run.replayed(shake=0.0)
    # It is the next chunk's first: the memory carried that far is the one stored there.
    assert run.told(acted[0], sample.batch).max() < 1e-5


def test_a_wrong_start_is_seen_until_the_next_episode_begins(run):
    sample, acted = run.replayed(shake=0.0)
    start = sample.batch.start
    wrong = start._replace(
        recurrent=jax.tree.map(lambda x: x + 1.0, start.recurrent),
        last_action=(start.last_action + 1) % run.parts.env.spec.num_actions,
        last_reward=start.last_reward + 1.0,
    )
    told = run.told(acted[0], sample.batch._replace(start=wrong))
    begun = np.asarray(jnp.cumsum(is_first(sample.batch.transitions.step_type), axis=1)) > 0
    assert told[begun].max() < 1e-5
    assert told[~begun[:, 0], 0].min() > 1e-4
    if run.parts.config.network.core == "none":
        assert told[:, 1:].max() < 1e-5  # without memory only the first record looks back
