"""The configuration tree: frozen dataclasses whose defaults are the paper's shared tables.

Field names carry their units. docs/configuration.md is made from the docstrings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class UpdateConfig:
    """One policy update and its hyperparameters; an update reads only the fields that it uses."""

    name: str = "muesli"
    """Which entry of ``policy_updates.UPDATES`` trains the policy."""
    total_weight: float = 3.0
    """Multiplies the whole policy loss: policy gradient, regulariser and policy model together."""
    entropy_weight: float = 0.0
    """λ_H, the weight of the entropy bonus (pg, trpo_penalty, ppo; muesli, with 0 in the paper)."""
    trpo_weight: float = 0.0
    """Weight of KL(π_b, π) (trpo_penalty)."""
    ppo_clip: float = 0.5
    """Clipping of the importance ratio around 1 (ppo)."""
    mpo_kl_limit: float = 0.01
    """Bound on E KL(π_MPO, π) that the temperature is trained to keep (mpo)."""
    mpo_init_temperature: float = 1.0
    """Temperature η of π_MPO at the first update (mpo)."""
    mpo_min_temperature: float = 0.01
    """Floor of the temperature; with 1, π_MPO is no sharper than normalised advantages (mpo)."""
    mpo_dual_learning_rate: float = 0.01
    """Adam step size of log η (mpo)."""
    direct_mpo_weight: float = 1.0
    """Weight of KL(π, π_prior) (direct_mpo)."""
    cmpo_weight: float = 1.0
    """λ, the weight of KL(π_CMPO, π) (muesli, cmpo)."""
    clip_threshold: float | None = 1.0
    """c, the clipping of normalised advantages inside π_CMPO; None does not clip."""
    advantage_scale: float = 1.0
    """Multiplies the advantages inside π_CMPO before clipping: the paper's robustness study."""
    beta_loo: bool = True
    """Action-dependent β-LOO baselines in the policy-gradient term."""
    kl_samples: int | None = 16
    """Actions sampled per state for the regulariser; None lists all actions (the exact KL)."""
    sampled_normaliser: Literal["leave_one_out", "candidates", "oracle"] = "leave_one_out"
    """How z of a sampled target is estimated: from the other samples; from all samples, as in
    MPO's own paper, which bounds the weights of unclipped gains; or from all actions (an
    ablation)."""
    z_init: float = 1.0
    """The initial estimate that joins the leave-one-out normaliser."""
    uniform_prior_weight: float = 0.003
    """Share of the uniform policy in π_prior when forming a target."""
    behaviour_prior_weight: float = 0.03
    """Share of the behaviour policy in π_prior when forming a target."""
    prior_mixing: bool = True
    """Mix these two shares in; False leaves π_prior as the target network has it."""


UPDATE_DEFAULTS: dict[str, UpdateConfig] = {
    "muesli": UpdateConfig(name="muesli"),
    "cmpo": UpdateConfig(name="cmpo"),
    "mpo": UpdateConfig(name="mpo", sampled_normaliser="candidates"),
    "direct_mpo": UpdateConfig(name="direct_mpo"),
    "pg": UpdateConfig(name="pg", entropy_weight=0.003),
    "trpo_penalty": UpdateConfig(name="trpo_penalty", entropy_weight=0.0003, trpo_weight=0.01),
    "ppo": UpdateConfig(name="ppo", entropy_weight=0.0003),
    "mcts": UpdateConfig(name="mcts"),
}
"""The paper's table of per-loss hyperparameters; how MPO samples is not in it."""


@dataclass(frozen=True)
class ModelLossConfig:
    """How the K-step predictions of the model are trained."""

    unroll_steps: int = 5
    """K, how many steps the model is unrolled from every state."""
    value_weight: float = 0.25
    """Weight of the value loss."""
    reward_weight: float = 1.0
    """Weight of the reward loss."""
    policy_model: bool = True
    """Train the model's policy predictions (for updates that have a target)."""
    q_model: Literal["reward_value", "direct"] = "reward_value"
    """Whether q̂ is r̂ + γ v̂, or predicted as one number."""
    value_target: Literal["state_value", "return"] = "state_value"
    """Train v̂_k towards v*_{t+k}, or towards the raw return G_{t+k}."""
    average_over: Literal["valid", "all"] = "valid"
    """Divide reward and value losses by the number of unmasked unroll steps, or by K. The first
    learns faster where rewards come at an episode's end, the second is unbiased for aliased
    states."""
    root_value_in_mean: bool = True
    """Average the root's value loss with the K unrolled ones; False adds it to their mean."""
    absorbing: bool = False
    """Past a terminated episode, train towards reward 0 and value 0 instead of masking."""


@dataclass(frozen=True)
class OptimiserConfig:
    """Adam, clipped updates, decoupled weight decay, and a learning rate that falls linearly."""

    learning_rate: float = 3e-4
    """Learning rate at the first update."""
    final_learning_rate: float = 0.0
    """Learning rate at the end of the run; it falls linearly to this value."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    update_clip: float | None = 1.0
    """Each parameter's Adam update is clipped to ± this; None does not clip."""
    max_gradient_norm: float | None = None
    """Gradients with a larger global norm are scaled down to it before Adam (not in the paper)."""
    adam_b1: float = 0.9
    """Decay of Adam's first moment."""
    adam_b2: float = 0.999
    """Decay of Adam's second moment."""
    adam_epsilon: float = 1e-8
    """Adam's ε."""
    max_skipped_updates: int = 10
    """Updates whose loss or gradient is not finite are skipped; this many in a row end the run."""


@dataclass(frozen=True)
class NetworkConfig:
    """The representation network, its core, and the model. Defaults: the paper's IMPALA network."""

    maker: str = "default"
    """Which entry of ``networks.NETWORKS`` builds the network."""
    torso: Literal["mlp", "conv_small", "dqn", "impala", "muzero"] = "impala"
    """Which torso maps an observation to features."""
    torso_channels: tuple[int, ...] = (64, 128, 128, 64)
    """Channels of each convolutional section (dqn: three), or units of each hidden layer of the
    mlp."""
    torso_units: int = 512
    """Units of the torso's last, fully connected layer."""
    normalise_observations: bool = False
    """Standardise every element of an observation by the running mean and variance of all fresh
    records (not in the paper). Useful where observations have units, as in MuJoCo, and for images,
    where it removes the static background."""
    observation_clip: float = 10.0
    """Standardised observations are clipped to ± this."""
    normalise_features: bool = False
    """RMS-normalise the torso's output (useful for small inputs: mlp, conv_small). In the muzero
    network: centre and scale what the heads read, before each rectifier."""
    normalise_core: bool = False
    """RMS-normalise the core's output, if there is a core. Without core_skip, gradients explode
    when that output shrinks to 0; this is how we read one run on images."""
    core_skip: bool = False
    """Add the LSTM core's input to its output, if there is a core. The LSTM's output alone is
    small, which slows learning."""
    last_action_and_reward: bool = True
    """Feed the last action and reward into the core."""
    core: Literal["lstm", "none"] = "lstm"
    """The recurrent core between the torso and the heads, or none."""
    core_units: int = 512
    """Units of the core."""
    model: Literal["lstm", "muzero"] = "lstm"
    """Which network the model's dynamics are."""
    model_units: int = 1024
    """Units of the dynamics LSTM, or of the last layer before the heads of the muzero dynamics."""
    model_action_scale: float = 1.0
    """Initial standard deviation of the lstm model's input weights for discrete actions. With a
    smaller one, the model's state keeps more of the observation after several actions."""
    hidden_heads: bool = True
    """Give each head of the lstm model a hidden layer of its own, as wide as the LSTM, before its
    output layer."""
    hidden_root_heads: bool = False
    """Give the policy and value heads of real states such hidden layers too (lstm model). v̂ then
    predicts returns as well as q̂ does; on MinAtar, returns did not improve."""
    blocks: int = 16
    """Residual blocks of the muzero torso, and of the muzero dynamics."""
    model_blocks: int | None = None
    """Residual blocks of the muzero dynamics; None: as many as its torso has."""
    model_planes: int = 256
    """Planes of the muzero network."""
    head_planes: int = 32
    """Planes to which the muzero network is reduced before its heads."""
    point_policy: bool = False
    """The muzero network on a board: add to the logit of every point a linear function of the
    planes at that point, with the same weights for all points."""
    downsample: bool = True
    """Whether the muzero torso reduces 96×96 images to 6×6; False keeps a board's size."""
    value_bins: int = 601
    """Bins of the value support."""
    value_max: float = 300.0
    """The value support spans ± this, in squeezed units."""
    reward_bins: int = 601
    """Bins of the reward support."""
    reward_max: float = 300.0
    """The reward support spans ± this, in squeezed units."""
    value_head_scale: float = 0.01
    """The weights of the value and reward heads start with a standard deviation of this over
    √inputs. Near 0, little of these heads' gradient reaches the layers below at first; images need
    about 1 for it to stand out from the noise of the policy gradient."""
    value_head_prior_rate: float = 0.0
    """Rate of a moving average of target-bin frequencies whose logarithm is added to the value and
    reward logits, so that the network learns only deviations from it. 0: off."""
    squash_actions: bool = True
    """Continuous policies: squash actions by tanh."""
    init_log_scale: float = 0.0
    """Continuous policies: log of the initial standard deviation."""
    min_log_scale: float = -5.0
    """Continuous policies: lower bound of the log standard deviation."""
    max_log_scale: float = 2.0
    """Continuous policies: upper bound of the log standard deviation."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the network's arithmetic; parameters, losses and states stay float32."""


@dataclass(frozen=True)
class AgentConfig:
    """Algorithm 1's own numbers."""

    discount: float = 0.995
    """γ between two steps; −1 for self-play, or −0.997 where winning sooner is better."""
    return_estimator: Literal["retrace", "vtrace", "q"] = "retrace"
    """How G is estimated; "q" gives the policy gradient the model's value of the taken action."""
    trace_lambda: float = 1.0
    """λ of Retrace or V-trace."""
    retrace_samples: int | None = 16
    """Actions sampled from π for E_{A∼π} q̂; None lists all actions."""
    baseline: Literal["value", "expected_q"] = "value"
    """v̂_prior(s): the target network's value head, or Σ_a π_prior(a) q̂(s, a)."""
    target_rate: float = 0.1
    """α_target, the prior parameters' moving-average rate."""
    moment_decay: float = 0.99
    """β_var of the advantage moment."""
    moment_epsilon: float = 1e-12
    """ε_var under the square root."""
    centre_advantages: bool = False
    """Subtract the batch's mean from the advantages (not in the paper), which removes an error that
    v̂ makes in all states alike. Useful for continuous policies: while every advantage is negative,
    the policy gradient drives them away from all replayed actions."""
    act_with: Literal["prior", "online", "cmpo", "q_softmax", "mcts"] = "prior"
    """Which policy acts while training."""
    exploration: float = 0.0
    """Share of the uniform policy over legal actions in the behaviour policy while training (not in
    the paper); off-policy corrections account for it. Meant to widen self-play."""
    q_softmax_temperature: float = 1.0
    """Temperature of acting by softmax of q̂, in standard deviations of the advantage."""
    dynamics_gradient_scale: float = 1.0
    """Scales the gradient that flows back through each step of the model (MuZero used 0.5)."""


@dataclass(frozen=True)
class SearchConfig:
    """Tree search over the model, for acting with mcts and for the mcts update."""

    algorithm: Literal["muzero", "gumbel"] = "muzero"
    """MuZero's search, or Gumbel MuZero's, which does better with few simulations."""
    simulations: int = 50
    """Model steps of one search."""
    model: Literal["learnt", "rules"] = "learnt"
    """What is searched: the agent's model, or the game's own rules, as AlphaZero does. The rules
    are for playing games of two players, not for training."""
    max_depth: int | None = None
    """Maximal depth of a search, in actions; None does not limit it."""
    least_spread: float = 0.1
    """A search rescales the values of a state's actions to [0, 1]. A range below this many standard
    deviations of the advantage is not stretched that far. 0 (mctx's way) stretches every range, and
    the policy then follows noise before anything is learnt."""
    dirichlet_fraction: float = 0.25
    """Share of Dirichlet noise in the root's prior while training (muzero)."""
    dirichlet_alpha: float = 0.3
    """Concentration of that noise (muzero)."""
    pb_c_init: float = 1.25
    """c₁ of the PUCT formula (muzero)."""
    pb_c_base: float = 19652.0
    """c₂ of the PUCT formula (muzero)."""
    considered_actions: int = 16
    """How many actions are considered at the root (gumbel)."""


@dataclass(frozen=True)
class BatchConfig:
    """What a batch consists of. All sizes are global: totals over all devices and hosts."""

    batch_sequences: int = 96
    """Sequences in one update."""
    online_sequences: int = 24
    """How many of these are fresh from the actors; the others are replayed."""
    micro_batches: int = 1
    """Pieces into which an update splits its batch, one after another: less memory and the same
    gradient, for one more forward pass of the online network."""
    sequence_length: int = 30
    """T, trained records in a sequence (one more is stored to bootstrap from)."""
    replay_capacity_steps: int = 6_000_000
    """Steps the replay ring holds, over all environments."""
    replay_min_steps: int = 0
    """Steps to collect before the first update."""
    symmetries: bool = False
    """Boards: play and train on every sequence under one of the board's eight symmetries."""


@dataclass(frozen=True)
class AtariConfig:
    """How the emulators are run. Defaults: the paper's table."""

    frame_skip: int = 4
    """Frames each action is repeated for."""
    pool_frames: Literal[2, 4] = 4
    """How many of the last repeated frames each pixel's maximum is taken over."""
    sticky_action_probability: float = 0.25
    """Probability, at every frame, that the emulator repeats the last action instead."""
    size_pixels: int = 96
    """Height and width of an observation."""
    grey: bool = False
    """One grey channel instead of red, green and blue."""
    max_episode_frames: int = 108_000
    """Frames after which an episode is cut off: 30 minutes of play."""
    exact: bool = False
    """Run the emulators one by one in Python, so that a checkpoint can hold their states. With
    actors.lockstep, resuming is then bit-exact. Slower."""


@dataclass(frozen=True)
class GoConfig:
    """How Go is scored."""

    komi: float = 7.5
    """Points given to White. With perfect play Black is known to win by 9 on 7×7, by 25 on 5×5."""


@dataclass(frozen=True)
class EnvConfig:
    """The environment, and how many copies of it run."""

    name: str = "catch"
    """An entry of ``muesli list envs``, ``gym:EnvId`` or ``module:EnvId``."""
    num_envs: int = 24
    """Copies that run in parallel; a multiple of ``batch.online_sequences``."""
    opening_moves: int = 0
    """Self-play: during training, the first n moves of each game are drawn at random, n uniform
    between 0 and this, so that self-play meets positions that it would not choose. Evaluations and
    matches start from the usual first position."""
    frame_stack: int = 1
    """Frames stacked along the last axis of an observation."""
    stack_actions: bool = False
    """Add, after each stacked frame, a plane that encodes the action that led to it."""
    reward_scale: float = 1.0
    """Multiplies every reward the agent sees; reported returns are not scaled."""
    threads: int = 0
    """Threads that run the copies of all groups (Atari); 0 uses every processor."""
    processes: int = 0
    """Worker processes that share the copies of all groups; 0 runs them in the main process."""
    atari: AtariConfig = AtariConfig()
    go: GoConfig = GoConfig()


@dataclass(frozen=True)
class ActorConfig:
    """How experience is collected."""

    runner: Literal["auto", "anakin", "sebulba"] = "auto"
    """anakin: everything in one jitted loop (JAX environments only). sebulba: actor threads beside
    the learner. auto: anakin where possible."""
    groups: int = 2
    """Sebulba: actor threads, each with its share of the environments."""
    device: Literal["learner", "cpu"] = "learner"
    """Sebulba: where actions are computed. On the learner's device they wait for the current
    update, so keeping it busy takes many environments, whose data lags far behind the newest
    parameters. On the CPU, which is fast enough for small networks, they do not wait."""
    lockstep: bool = False
    """Sebulba: collect with the parameters of one update, then train, in turn: exactly
    reproducible, and slower."""
    queue_chunks: int = 1
    """Sebulba: chunks of a group that may wait for the learner before the group pauses."""
    step_timeout_seconds: float = 60.0
    """An environment outside JAX that takes longer over one step counts as dead: in training
    (Sebulba), in the trial before it, and in evaluations, there in proportion to the copies."""
    max_restarts: int = 3
    """Sebulba: how often a group whose environments raise, die or hang is restarted before the run
    ends."""
    restart_seconds: float = 1.0
    """Sebulba: the pause before a group's first restart; it doubles with each further one."""


@dataclass(frozen=True)
class LogConfig:
    """When a run logs, evaluates and saves: counted in environment steps, never in seconds."""

    log_every_steps: int = 10_000
    """Steps between two lines of metrics."""
    eval_every_steps: int = 100_000
    """Steps between two evaluations; 0 evaluates only at the end."""
    eval_episodes: int = 64
    """Episodes of each evaluation; 0 never evaluates."""
    checkpoint_every_steps: int = 500_000
    """Steps between two checkpoints; 0 saves only at the end."""
    keep_checkpoints: int = 2
    """How many of the newest checkpoints are kept, besides the best."""
    keep_every: int = 0
    """Keep the acting parameters of every n-th checkpoint for good, as ``kept-<updates>``: as
    opponents in matches and for Elo over training. 0 keeps none."""
    save_replay: bool = True
    """Save the replay ring in checkpoints. Without it, a resumed run fills the ring again
    (Sebulba); for environments inside JAX only the final checkpoint may omit it."""


@dataclass(frozen=True)
class Config:
    """A whole run."""

    seed: int = 0
    """Determines everything random in the run."""
    total_env_steps: int = 50_000_000
    """Environment steps of the whole run; the learning rate reaches its final value there."""
    env: EnvConfig = EnvConfig()
    actors: ActorConfig = ActorConfig()
    network: NetworkConfig = NetworkConfig()
    agent: AgentConfig = AgentConfig()
    update: UpdateConfig = UpdateConfig()
    model: ModelLossConfig = ModelLossConfig()
    optimiser: OptimiserConfig = OptimiserConfig()
    search: SearchConfig = SearchConfig()
    batch: BatchConfig = BatchConfig()
    log: LogConfig = LogConfig()


def leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted field that is not itself a group of fields, with its value."""
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from leaves(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", value


class ConfigError(ValueError):
    """A configuration that cannot run; the message names the field and what would be right."""


YOUR_OWN = "(one of your own: muesli --plugin FILE COMMAND ...)"
"""What to say to whoever names an entry of a registry that is not there."""
