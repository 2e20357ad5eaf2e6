"""What an environment is to us."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from muesli.frames import Stack, begin, mark, newest, push
from muesli.types import Array, EnvSpec, PRNGKey, PyTree, StepType, TimeStep, is_last

HostState: TypeAlias = dict[str, np.ndarray]


class EnvError(ValueError):
    """An environment breaks the contract; the message says how, in one line."""


class JaxEnv(NamedTuple):
    """One copy of an environment as pure functions.

    spec: EnvSpec; reset(key) -> (state, TimeStep); step(state, action, key) -> (state, TimeStep):
    compiled loops call it on a LAST time step too and discard its answer, which may be anything but
    must come; render(observation) -> [H, W, 3] u8, a NumPy picture.
    """

    spec: EnvSpec
    reset: Callable[[PRNGKey], tuple[PyTree, TimeStep]]
    step: Callable[[PyTree, Array, PRNGKey], tuple[PyTree, TimeStep]]
    render: Callable[[np.ndarray], np.ndarray]


class HostEnv(NamedTuple):
    """A batch of copies of an environment that lives outside JAX, as functions on NumPy arrays.

    reset() -> TimeStep [E], every copy FIRST; step(actions [E] i32 or [E, D] f32) -> TimeStep [E]:
    a copy whose last time step was LAST ignores its action and answers FIRST; close(); picture() ->
    [H, W, 3] u8, where the first copy can be seen otherwise than by its observation. Arrays that
    were handed out are not written to again.

    Where the copies can be saved: save() -> NumPy arrays by name, or None if they cannot be just
    now; load(state) in place of reset(), on copies made for the same slots and seed, raises an
    EnvError where the copies cannot be brought back to it.
    """

    reset: Callable[[], TimeStep]
    step: Callable[[np.ndarray], TimeStep]
    close: Callable[[], None]
    save: Callable[[], HostState | None] | None = None
    load: Callable[[HostState], None] | None = None
    picture: Callable[[], np.ndarray] | None = None


class HostEnvs(NamedTuple):
    """An environment outside JAX before any copy of it runs.

    spec: EnvSpec; make(slots, seed) -> HostEnv with one copy for each slot of the run: what copy
    ``i`` does depends on ``seed``, its slot ``slots[i]`` and its actions alone; render(observation)
    -> [H, W, 3] u8; frames_per_step: emulator frames in one step; trial(steps, patience_seconds),
    where there is one, plays a copy of its own and raises an EnvError that says what is wrong with
    it; film(seed), where there is one, makes a single copy that has a ``picture``.
    """

    spec: EnvSpec
    make: Callable[[range, int], HostEnv]
    render: Callable[[np.ndarray], np.ndarray]
    frames_per_step: int = 1
    trial: Callable[[int, float], None] | None = None
    film: Callable[[int], HostEnv] | None = None


def host_timestep(
    observation: np.ndarray,
    reward: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    begun: np.ndarray,
) -> TimeStep:
    """A batched NumPy TimeStep of copies that reset themselves on the step after their last.

    begun: [E] bool, where this step began an episode (the one before was LAST): FIRST, reward 0.
    """
    ended = (terminated | truncated) & ~begun
    kinds = np.where(ended, StepType.LAST, StepType.MID)
    arrived: Any = np.where(begun, 0.0, reward).astype(np.float32)
    discount: Any = np.where(terminated & ~begun, 0.0, 1.0).astype(np.float32)
    step_type: Any = np.where(begun, StepType.FIRST, kinds).astype(np.int32)
    return TimeStep(observation, arrived, discount, step_type)


def refuse_not_finite(name: str, slots: range, timestep: TimeStep) -> None:
    """Raises an EnvError where a batched observation or reward holds what no agent can learn."""
    for what, numbers in (("observation", timestep.observation), ("reward", timestep.reward)):
        if not np.issubdtype(numbers.dtype, np.floating):
            continue
        fine = np.isfinite(numbers).reshape(len(slots), -1).all(axis=1)
        if not fine.all():
            slot = slots[int(np.argmin(fine))]
            raise EnvError(f"{name}, slot {slot}: the {what} holds a number that is not finite")


def slot_seeds(slots: range, seed: int) -> np.ndarray:
    """One seed for each slot, 31 bits: [E] i64; different for different runs and slots."""
    states = [np.random.SeedSequence((seed, slot)).generate_state(1)[0] for slot in slots]
    return np.array(states, np.int64) & 0x7FFFFFFF


def first(observation: PyTree, legal_actions: Array | None = None) -> TimeStep:
    """The first time step of an episode."""
    return TimeStep(
        observation,
        jnp.zeros((), jnp.float32),
        jnp.ones((), jnp.float32),
        jnp.asarray(StepType.FIRST, jnp.int32),
        legal_actions,
    )


def later(
    observation: PyTree,
    reward: Array,
    terminated: Array,
    truncated: Array | bool = False,
    legal_actions: Array | None = None,
) -> TimeStep:
    """A time step after an action: MID, or LAST when the episode terminated or was truncated."""
    ended = jnp.logical_or(terminated, truncated)
    return TimeStep(
        observation,
        jnp.asarray(reward, jnp.float32),
        jnp.where(terminated, 0.0, 1.0).astype(jnp.float32),
        jnp.where(ended, StepType.LAST, StepType.MID).astype(jnp.int32),
        legal_actions,
    )


def auto_reset_step(
    env: JaxEnv, state: PyTree, timestep: TimeStep, action: Array, key: PRNGKey
) -> tuple[PyTree, TimeStep]:
    """One step of one copy; after a LAST time step the action is ignored and an episode begins."""
    stepped = env.step(state, action, key)
    fresh = env.reset(key)
    ended = is_last(timestep.step_type)
    return jax.tree.map(lambda a, b: jnp.where(ended, a, b), fresh, stepped)


def stack_frames(env: JaxEnv, stack: Stack) -> JaxEnv:
    """The same environment with several frames in an observation."""
    shape = env.spec.observation_shape
    spec = env.spec._replace(observation_shape=(*shape[:-1], stack.channels(shape[-1])))

    def reset(key: PRNGKey) -> tuple[PyTree, TimeStep]:
        state, timestep = env.reset(key)
        nothing = jnp.zeros((), jnp.int32)
        seen = begin(mark(timestep.observation, nothing, jnp.array(True), stack), stack)
        return (state, seen), timestep._replace(observation=seen)

    def step(state: PyTree, action: Array, key: PRNGKey) -> tuple[PyTree, TimeStep]:
        inner, seen = state
        inner, timestep = env.step(inner, action, key)
        seen = push(seen, mark(timestep.observation, action, jnp.array(False), stack))
        return (inner, seen), timestep._replace(observation=seen)

    def render(observation: np.ndarray) -> np.ndarray:
        return env.render(newest(observation, stack))

    return JaxEnv(spec, reset, step, render)


_PALETTE = (
    np.array(
        [
            [76, 114, 176],
            [221, 132, 82],
            [85, 168, 104],
            [196, 78, 82],
            [129, 114, 179],
            [147, 120, 96],
            [218, 139, 195],
            [140, 140, 140],
            [204, 185, 116],
            [100, 181, 205],
        ]
    )
    .astype(np.uint8)
)  # fmt: skip


def render_planes(observation: np.ndarray) -> np.ndarray:
    """A picture of an observation made of planes [H, W, C]: one colour per plane."""
    planes = np.asarray(observation, np.float32)
    picture = np.full((*planes.shape[:2], 3), 24, np.uint8)
    for plane in range(planes.shape[-1]):
        picture[planes[..., plane] > 0] = _PALETTE[plane % len(_PALETTE)]
    return picture
