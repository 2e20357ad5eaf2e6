"""A Gymnasium environment that breaks one promise, by its name."""

import time
from typing import ClassVar

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
    "step_exits": "step 4 raised SystemExit: 5 (misshapen.py:",
    "large_reward": "step 4: the reward is 1e+300, too large for float32",
    "large": "step 4: the observation holds 1e+300 at [1], too large for float32",
    "info": "step 4: the info must be a dict, got None",
}
"""What is said of each."""
UNFIT = {
    "init_raises": "cannot be made: RuntimeError: no serial port (misshapen.py:",
    "init_exits": "cannot be made: SystemExit: 5 (misshapen.py:",
    "needs_argument": "cannot be made: TypeError: ",
    "no_observation_space": "has no observation_space",
    "no_action_space": "has no action_space",
    "other_space": "has a tuple of 2 for an action_space",
    "no_numbers": "has Box([], [], (0,), float32) observations, which hold no number",
    "no_parts": "has Dict() observations, which hold no number",
    "no_action": "has Box([], [], (0,), float32) actions, which hold no number",
    "wide_actions": "has unbounded actions, Box(-1e+308, 1e+308, (1,), float64)",
}
"""What is said of each that cannot even be made."""
SOUND = ("close_raises", "no_render_modes", "no_metadata")
"""What is odd, but no reason to refuse it."""


class Misshapen(gymnasium.Env):
    """Sound, but for what ``how`` names, from its fifth step (or its first reset) on."""

    action_space = spaces.Discrete(2)

    def __init__(self, how):
        self.how, self.time = how, 0
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        if how == "large":
            self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
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
            "large": np.array([0, 1e300 if late else 0]),
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
        if late and self.how == "step_exits":
            raise SystemExit(5)
        reward = {
            "reward": np.inf,
            "large_reward": 1e300,
            "reward_vector": np.zeros(2, np.float32),
        }.get(self.how, 0.0)
        terminated = 0 if late and self.how == "terminated" else False
        info = None if late and self.how == "info" else {}
        return self.observe(), reward if late else 0.0, terminated, False, info


class Unfit(Misshapen):
    """Cannot be made, or has spaces that no agent can use; or is sound, for all its oddity."""

    def __init__(self, how):
        super().__init__(how)
        if how == "init_raises":
            raise RuntimeError("no serial\nport")
        if how == "init_exits":
            raise SystemExit(5)
        nothing = spaces.Box(-1.0, 1.0, (0,))
        wide = spaces.Box(-1e308, 1e308, (1,), np.float64)
        seen = {"no_numbers": nothing, "no_parts": spaces.Dict({})}
        done = {"no_action": nothing, "wide_actions": wide, "other_space": (0, 1)}
        self.observation_space = seen.get(how, self.observation_space)
        self.action_space = done.get(how, self.action_space)
        if how == "no_observation_space":
            del self.observation_space
        if how == "no_action_space":
            self.action_space = None
        if how == "no_render_modes":
            self.metadata = {"render_modes": None}
        if how == "no_metadata":
            self.metadata = None

    def close(self):
        if self.how == "close_raises":
            raise RuntimeError("it does not close")


def identifier(how):
    return f"Misshapen{''.join(word.capitalize() for word in how.split('_'))}-v0"


for broken in BROKEN:
    gymnasium.register(identifier(broken), Misshapen, kwargs={"how": broken})
for unfit in (*UNFIT, *SOUND):
    arguments = {} if unfit == "needs_argument" else {"how": unfit}
    gymnasium.register(identifier(unfit), Unfit, kwargs=arguments)


class Late(gymnasium.Env):
    """Sound in a trial, and another thing after as many steps."""

    action_space = spaces.Discrete(2)

    def __init__(self, space, fine, late, steps=30):
        self.observation_space, self.fine, self.late = space, fine, late
        self.time, self.steps = 0, steps

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.fine, {}

    def step(self, action):
        self.time += 1
        return self.late if self.time > self.steps else self.fine, 0.0, False, False, {}


class Hanging(gymnasium.Env):
    """Answers a reset, and then never again."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        time.sleep(600)


gymnasium.register("Hanging-v0", Hanging)


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


class Drawn(Walk):
    """Draws itself, or something that is no picture."""

    metadata: ClassVar = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode=None, draws=None):
        self.render_mode, self.draws = render_mode, draws

    def render(self):
        if self.draws == "raises":
            raise RuntimeError("no paper")
        if self.draws == "nothing":
            return None
        return np.full((6, 7, 3), 9, np.uint8)


def make_drawn():
    return Drawn("rgb_array")


gymnasium.register("Drawn-v0", Drawn)
