"""A Gymnasium environment that breaks one promise, by its name."""

import gymnasium
import numpy as np
from gymnasium import spaces

BROKEN = {
    "nan": "step 4: the observation holds nan at [1]",
    "shape": "step 4: the observation has shape [3], its space says [2]",
    "dtype": "reset: the observation is float64, its space says uint8",
    "outside": "step 4: the observation holds 7 at [0], outside its space's [-1, 1]",
    "reset_raises": "reset raised RuntimeError: the robot is not plugged in",
    "step_raises": "step 4 raised KeyError: 'arm'",
    "old_reset": "reset must return an observation and a dict, got float32[2]",
    "old_step": "step 4 must return observation, reward, terminated, truncated and a dict",
    "reward": "step 4: the reward is inf",
    "reward_vector": "step 4: the reward must be one number, got float32[2]",
    "terminated": "step 4: terminated must be True or False, got 0",
    "key": "reset: the observation must be a dict of far, near, got a dict of 1",
    "part": "reset: the observation['far'] has shape [2], its space says [3]",
}
"""What is said of each."""


class Misshapen(gymnasium.Env):
    """Sound, but for what ``how`` names, from its fifth step (or its first reset) on."""

    action_space = spaces.Discrete(2)

    def __init__(self, how):
        self.how, self.time = how, 0
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        if how == "dtype":
            self.observation_space = spaces.Box(0, 255, (2,), np.uint8)
        if how in ("key", "part"):
            parts = {"near": spaces.Box(-1.0, 1.0, (2,)), "far": spaces.Box(-1.0, 1.0, (3,))}
            self.observation_space = spaces.Dict(parts)

    def observe(self):
        fine = np.zeros(2, np.float32)
        late = self.time > 4
        return {
            "dtype": fine.astype(np.float64),
            "key": {"near": fine},
            "part": {"near": fine, "far": fine},
            "nan": np.float32([0, np.nan]) if late else fine,
            "shape": np.zeros(3, np.float32) if late else fine,
            "outside": np.float32([7, 0]) if late else fine,
        }.get(self.how, fine)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.how == "reset_raises":
            raise RuntimeError("the robot\nis not plugged in")
        return self.observe() if self.how == "old_reset" else (self.observe(), {})

    def step(self, action):
        self.time += 1
        late = self.time > 4
        if late and self.how == "step_raises":
            raise KeyError("arm")
        if late and self.how == "old_step":
            return self.observe(), 0.0, False, {}
        reward = {"reward": np.inf, "reward_vector": np.zeros(2, np.float32)}.get(self.how, 0.0)
        terminated = 0 if late and self.how == "terminated" else False
        return self.observe(), reward if late else 0.0, terminated, False, {}


for broken in BROKEN:
    name = "".join(word.capitalize() for word in broken.split("_"))
    gymnasium.register(f"Misshapen{name}-v0", Misshapen, kwargs={"how": broken})


def make_walk():
    """A Gymnasium environment that is sound: a walk between −1 and 1 that pays for its place."""
    return Walk()


class Walk(gymnasium.Env):
    """Continuous steps on a line; ends after eight."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Box(-0.5, 0.5, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = np.zeros(1, np.float32), 0
        return self.place, {}

    def step(self, action):
        self.place = np.clip(self.place + action, -1.0, 1.0).astype(np.float32)
        self.time += 1
        return self.place, float(self.place[0]), False, self.time >= 8, {}
