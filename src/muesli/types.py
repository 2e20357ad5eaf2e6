"""Every record that flows through the house.

Axes, in the order in which they appear in a shape: ``T`` time, ``B`` batch, ``N`` candidate
actions of one state, ``K`` model unroll steps, ``D`` action dimensions, ``E`` environments. A shape
``[...]`` means "any leading axes". The time convention is Algorithm 1's: record ``t`` of a
sequence holds ``s_t``, ``a_t``, ``r_{t+1}`` and ``γ_{t+1}``, and the last observation of an episode
is a record of its own, of type ``LAST``, whose action is ignored and whose losses are masked.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

Array: TypeAlias = jax.Array
PRNGKey: TypeAlias = jax.Array
PyTree: TypeAlias = Any
Metrics: TypeAlias = dict[str, jax.Array]


class StepType(IntEnum):
    """Where a record stands in its episode."""

    FIRST = 0
    MID = 1
    LAST = 2


class TimeStep(NamedTuple):
    """What an environment says after a step.

    observation: pytree of arrays [...]; reward: [] f32, received on arrival (0 when FIRST);
    discount: [] f32, 0 when the episode has terminated, else 1; step_type: [] i32;
    legal_actions: [A] bool, or None where every action is legal.
    """

    observation: PyTree
    reward: Array
    discount: Array
    step_type: Array
    legal_actions: Array | None = None


class EnvSpec(NamedTuple):
    """What a network must know of an environment. Static: plain Python values.

    observation_shape, observation_dtype: of one observation; num_actions: A, or None for continuous
    actions; action_size: D of continuous actions; players: 2 for self-play games, whose episodes
    alternate between the players and whose rewards are the mover's; legal_actions: whether time
    steps carry a mask; action_names: what pictures call the actions, A of them, or none.
    """

    observation_shape: tuple[int, ...]
    observation_dtype: Any
    num_actions: int | None
    action_size: int = 0
    players: int = 1
    legal_actions: bool = False
    action_names: tuple[str, ...] = ()

    @property
    def action_inputs(self) -> int:
        """How many numbers encode an action: A for a one-hot, D for a vector."""
        return self.action_size if self.num_actions is None else self.num_actions

    @property
    def is_board(self) -> bool:
        """Whether the actions are the points of a board, row by row, or these and a pass."""
        if len(self.observation_shape) != 3:
            return False
        height, width, _ = self.observation_shape
        return self.num_actions in (height * width, height * width + 1)

    @property
    def has_pass(self) -> bool:
        """Whether the last action is no point of a board but a pass."""
        height, width = self.observation_shape[:2] if self.is_board else (0, 0)
        return self.is_board and self.num_actions == height * width + 1


class ActorState(NamedTuple):
    """What an actor remembers between two steps of one environment.

    recurrent: pytree of the network core (empty for a feed-forward one); last_action: [] i32 or
    [D] f32; last_reward: [] f32; symmetry: [] i32, the side it sees its board from, or None.
    """

    recurrent: PyTree
    last_action: Array
    last_reward: Array
    symmetry: Array | None = None


class Transition(NamedTuple):
    """Record ``t``: the observation, what was done there, and what came of it.

    observation: s_t; action: a_t, [] i32 or [D] f32; behaviour: π_b(·|s_t), a distribution;
    reward: r_{t+1}, [] f32; discount: γ_{t+1} as the environment gave it, [] f32;
    step_type: [] i32, of s_t; legal_actions: [A] bool or None.
    """

    observation: PyTree
    action: Array
    behaviour: PyTree
    reward: Array
    discount: Array
    step_type: Array
    legal_actions: Array | None = None


class Trajectory(NamedTuple):
    """A training sequence: T trained records and one bootstrap record, with where it started.

    transitions: Transition with leading axis [T + 1]; start: the ActorState in which s_0 was met.
    The action, reward and discount of the bootstrap record are never read.
    """

    transitions: Transition
    start: ActorState


class RootOutput(NamedTuple):
    """What the representation network says of real states.

    policy: a distribution [...]; value_logits: [..., bins]; embedding: h(s), [..., E] or
    [..., H, W, C], where the model starts.
    """

    policy: PyTree
    value_logits: Array
    embedding: PyTree


class ModelOutput(NamedTuple):
    """What the model says after one more action.

    reward_logits: [..., bins]; value_logits: [..., bins]; policy: a distribution; embedding: the
    model's next state, a pytree.
    """

    reward_logits: Array
    value_logits: Array
    policy: PyTree
    embedding: PyTree


class Candidates(NamedTuple):
    """N actions of one state with the weights that turn them into an expectation under the prior.

    For any f, E_{A∼π_prior} f(A) is Σ_k weights[k]·f(actions[k]): exactly when every action is
    listed (``weights`` is then π_prior), and as an unbiased estimate when the actions were sampled
    from π_prior (``weights`` is then 1/N). So one formula serves both estimators.

    actions: [N] i32 or [N, D] f32; weights: [N] f32; log_prior: [N] f32, log π_prior(actions);
    advantages: [N] f32, (q̂(s, a) − v̂(s)) / σ.
    """

    actions: Array
    weights: Array
    log_prior: Array
    advantages: Array


class PolicyTarget(NamedTuple):
    """What a policy is distilled towards, for discrete and continuous actions alike.

    actions: [N] i32 or [N, D] f32; weights: [N] f32, each action's share of the cross-entropy;
    log_probs: [N] f32, the log-density of the target there (so that a KL can be reported).
    """

    actions: Array
    weights: Array
    log_probs: Array


class PolicyInputs(NamedTuple):
    """Everything a policy update may look at, for one state. Only ``policy`` carries gradients.

    policy: π(·|s), online; prior: π_prior(·|s), the target network's own (unmixed) policy;
    behaviour: π_b(·|s); action: a_t; advantage: [] f32, (G(s, a) − v̂(s)) / σ;
    q_advantage: [] f32, (q̂(s, a) − v̂(s)) / σ at the action taken; rho: [] f32, min(1, π/π_b);
    candidates: Candidates of this state under the (mixed) prior; temperature: [] f32, MPO's η;
    oracle: Candidates that list every action, for a sampled target whose z is exact, or None;
    search: the PolicyTarget of a search's visit counts, or None.
    """

    policy: PyTree
    prior: PyTree
    behaviour: PyTree
    action: Array
    advantage: Array
    q_advantage: Array
    rho: Array
    candidates: Candidates
    temperature: Array
    oracle: Candidates | None = None
    search: PolicyTarget | None = None


class PolicyOutput(NamedTuple):
    """What a policy update answers, for one state.

    loss: [] f32; target: what the model's policy predictions of this state are trained towards, or
    None if this update does not train them; metrics: diagnostics, each [] f32; divergence: [] f32,
    what the temperature η is trained to keep below its limit in the mean, or None.
    """

    loss: Array
    target: PolicyTarget | None
    metrics: Metrics
    divergence: Array | None = None


class ReturnEstimates(NamedTuple):
    """Multi-step estimates along one sequence.

    returns: [T], G_t of each trained record; values: [T + 1], v*_t of every record, so that
    G_t = r_{t+1} + γ_{t+1} v*_{t+1} holds exactly.
    """

    returns: Array
    values: Array


class Targets(NamedTuple):
    """All that the losses of one sequence treat as constant. It passes one ``stop_gradient``.

    returns: [T], G_t; values: [T + 1], targets of the value predictions; values_valid: [T + 1]
    bool; rewards: [T], r_{t+1}; discounts: [T], γ_{t+1}; step_type: [T + 1];
    policy: PolicyInputs with leading axis [T + 1], its ``policy`` field aside (None here);
    baseline: [T + 1], v̂_prior(s_t), for the diagnostics.
    """

    returns: Array
    values: Array
    values_valid: Array
    rewards: Array
    discounts: Array
    step_type: Array
    policy: PolicyInputs
    baseline: Array


class Moment(NamedTuple):
    """Algorithm 1's running second moment of the advantage estimator.

    second: [] f32, ``var``; decay_product: [] f32, ``β_product``.
    """

    second: Array
    decay_product: Array


class Frequencies(NamedTuple):
    """How often each bin is a target, in mean over a batch, and how far targets are no single bin.

    reward: [bins], summing to 1, of rewards; value, next_value: [bins], of the values of states and
    of what the model is asked one step ahead, 0 where an episode ended; reward_floor, value_floor:
    [], the entropy of a target of the model, in mean: the least cross-entropy there is.
    """

    reward: Array
    value: Array
    next_value: Array
    reward_floor: Array
    value_floor: Array


class Statistics(NamedTuple):
    """Running statistics of every element of an observation.

    seen: [] f32, how many; mean, variance: pytrees shaped like one observation, f32.
    """

    seen: Array
    mean: PyTree
    variance: PyTree


class Faults(NamedTuple):
    """Updates that were not made because a loss or gradient was not finite.

    skipped: [] i32, so far; in_a_row: [] i32, of them, since the last one that was made.
    """

    skipped: Array
    in_a_row: Array


class AgentState(NamedTuple):
    """Everything the learner is.

    online, prior: parameters; optimiser: optax state; moment: Moment; dual: MPO's dual variable
    with its optimiser; normaliser: Statistics of the observations, or None; step: [] i32, updates
    so far, skipped ones included; faults: Faults.
    """

    online: PyTree
    prior: PyTree
    optimiser: PyTree
    moment: Moment
    dual: PyTree
    normaliser: Statistics | None
    step: Array
    faults: Faults


class EpisodeState(NamedTuple):
    """Running totals of the episodes under way. total: [E] f32, unscaled; length: [E] i32."""

    total: Array
    length: Array


class RunState(NamedTuple):
    """The whole run as one pytree: what a checkpoint holds.

    agent: AgentState; actors: ActorState [E]; env_states: pytree [E] (or None where environments
    cannot be saved); timesteps: TimeStep [E], what the actors see next; episodes: EpisodeState [E];
    replay: the ring, or None without replay; key: the run's key, never split: the key of a step is
    ``fold_in(fold_in(key, slot), step)``; iteration: [] i32, chunks collected so far.
    """

    agent: AgentState
    actors: ActorState
    env_states: PyTree
    timesteps: TimeStep
    episodes: EpisodeState
    replay: PyTree
    key: PRNGKey
    iteration: Array


def is_first(step_type: Array) -> Array:
    """True where a record opens an episode."""
    return jnp.equal(step_type, StepType.FIRST)


def is_last(step_type: Array) -> Array:
    """True where a record closes an episode."""
    return jnp.equal(step_type, StepType.LAST)
