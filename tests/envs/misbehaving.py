"""An environment that does what tests of worker processes fear, by its action."""

import os
import signal
import sys
import time

import gymnasium
import numpy as np

FINE, RAISE, EXIT, HANG, HANG_ON, FORK = range(6)


class Misbehaving(gymnasium.Env):
    """Observes its process: its id, and whether JAX would compute elsewhere than on the CPU."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(6)

    def __init__(self, made_in_workers=True):
        # One copy is made in the tests' own process, to see its spaces.
        if not made_in_workers and "pytest" not in sys.modules:
            raise RuntimeError("no paper")

    def _observation(self):
        import jax

        return np.array([os.getpid(), jax.config.jax_platforms != "cpu"], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action):
        if action == RAISE:
            raise RuntimeError("out of paper")
        if action == EXIT:
            os._exit(3)
        if action == HANG_ON:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if action in (HANG, HANG_ON):
            time.sleep(600)
        if action == FORK and os.fork() == 0:
            # Keeps the worker's pipe open when the worker is gone.
            time.sleep(5)
            os._exit(0)
        if action == FORK:
            os._exit(4)
        return self._observation(), 0.0, False, False, {}


def wrong_rewards():
    """CartPole whose rewards are no f32."""
    from muesli import envs

    made = envs.make("gym:CartPole-v1")

    def make(slots, seed):
        env = made.make(slots, seed)

        def step(actions):
            timestep = env.step(actions)
            return timestep._replace(reward=timestep.reward.astype(np.float64))

        return env._replace(step=step)

    return made._replace(make=make)


gymnasium.register("Misbehaving-v0", Misbehaving)
gymnasium.register("Unmakeable-v0", Misbehaving, kwargs={"made_in_workers": False})
