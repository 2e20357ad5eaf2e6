"""Every figure and table of the paper that compares agents, as a suite at three scales.

``laptop`` takes a few minutes on two cores and asks only whether an effect can be seen there;
``gpu`` takes up to half an hour on one H200; ``paper`` is what was printed.
"""

from __future__ import annotations

from collections.abc import Mapping

from muesli.config import Config
from muesli.suites.published import TABLE_3, TABLE_11
from muesli.suites.records import Claim, Fields, Row, Scale, Suite

TUNING_GAMES = (
    *("alien", "beam_rider", "breakout", "gravitar", "hero"),
    *("ms_pacman", "phoenix", "robotank", "seaquest", "time_pilot"),
)
"""The ten games on which the paper tuned."""
FORTY_MILLION_GAMES = (
    *("alien", "amidar", "crazy_climber", "enduro", "frostbite"),
    *("krull", "ms_pacman", "qbert", "seaquest"),
)
ALL_GAMES = tuple(env.removeprefix("atari:") for env in TABLE_11)
MINATAR = tuple(
    f"minatar_{game}" for game in ("breakout", "asterix", "freeway", "space_invaders", "seaquest")
)
MUJOCO = tuple(
    f"gym:{name}-v5" for name in ("Ant", "HalfCheetah", "Hopper", "Humanoid", "Swimmer", "Walker2d")
)


def _atari(games: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"atari:{game}" for game in games)


# What the presets log and keep is more than a study needs: the curve, and the last agent.
_QUIET: Fields = {
    "log.eval_every_steps": 0,
    "log.checkpoint_every_steps": 0,
    "log.keep_checkpoints": 1,
    "log.save_replay": False,
}
_LAPTOP: Fields = {
    **_QUIET,
    "total_env_steps": 24_000,
    "log.log_every_steps": 1_000,
    "log.eval_episodes": 100,
}
_GPU: Fields = {
    **_QUIET,
    "total_env_steps": 5_000_000,
    "log.log_every_steps": 100_000,
    "log.eval_episodes": 0,
}
# Agents are told apart by what thousands of updates make of them: 5M steps are 19,500 small ones,
# where the batches of ``minatar_gpu`` would make 2,400. The seeds, trained at once, fill the chip.
_MINATAR: Fields = {
    **_GPU,
    "env.num_envs": 16,
    "batch.batch_sequences": 64,
    "batch.online_sequences": 16,
}
# Suites of many rows: a shorter run each.
_MANY: Fields = {"total_env_steps": 2_000_000}
# Agents that play themselves are scored by evaluations.
_MATCHES: Fields = {"log.eval_episodes": 128}


def _scales(
    games: tuple[str, ...] = ALL_GAMES,
    paper_seeds: int = 5,
    laptop: Fields | None = None,
    gpu: Fields | None = None,
    paper: Fields | None = None,
    minatar: tuple[str, ...] = MINATAR,
    paper_preset: str = "atari",
    laptop_seeds: int = 5,
) -> Mapping[str, Scale]:
    """Catch, MinAtar, Atari: the three scales of a figure about Atari."""
    return {
        "laptop": Scale("catch", ("catch",), laptop_seeds, {**_LAPTOP, **(laptop or {})}),
        "gpu": Scale("minatar_gpu", minatar, 5, {**_MINATAR, **(gpu or {})}),
        "paper": Scale(paper_preset, _atari(games), paper_seeds, paper or {}),
    }


def _row(name: str, published: str = "", **fields: object) -> Row:
    return Row(name, {key.replace("__", "."): value for key, value in fields.items()}, published)


def _replay(share: float) -> Fields:
    """Of a batch, this share is replayed, as nearly as the number of environments allows."""

    def online_sequences(config: Config) -> int:
        wanted = config.batch.batch_sequences * (1.0 - share) + 0.5
        # Outside JAX each group of actors has its own part of the environments.
        groups = config.actors.groups if ":" in config.env.name else 1
        each = config.env.num_envs // groups
        return max(n for n in range(1, each + 1) if each % n == 0 and n <= wanted)

    return {"batch.online_sequences": online_sequences}


_MUESLI = Row("muesli")
_SCALES = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
# "Multiples of 3" around the printed value of each hyperparameter.
_TUNED = {
    "pg": ("update.entropy_weight", (0.0003, 0.001, 0.003, 0.01, 0.03)),
    "trpo_penalty": ("update.trpo_weight", (0.001, 0.003, 0.01, 0.03, 0.1)),
    "ppo": ("update.ppo_clip", (0.2, 0.25, 0.3, 0.5, 0.8)),
    "mpo": ("update.mpo_kl_limit", (0.001, 0.003, 0.01, 0.03, 0.1)),
    "muesli": ("update.cmpo_weight", (0.1, 0.3, 1.0, 3.0, 10.0)),
}

SUITES: dict[str, Suite] = {
    "baselines": Suite(
        title="Muesli beside other policy updates",
        figure="figure 1a",
        rows=(
            _MUESLI,
            _row("mpo", update__name="mpo"),
            _row("trpo_penalty", update__name="trpo_penalty"),
            _row("ppo", update__name="ppo"),
            _row("pg", update__name="pg"),
        ),
        claims=tuple(
            Claim("better", "muesli", other, f"Muesli scores higher than {label}")
            for other, label in (
                ("mpo", "MPO"),
                ("trpo_penalty", "the TRPO penalty"),
                ("ppo", "PPO"),
                ("pg", "policy gradients"),
            )
        ),
        scales=_scales(),
    ),
    "large": Suite(
        title="Muesli with the MuZero network and much replay",
        figure="figure 1b, tables 2 and 10",
        rows=(
            Row("replay_95", _replay(0.95), "median 1,041 ± 40%, mean 2,524 ± 104%"),
            Row("replay_80", _replay(0.80), "median 755 ± 27%, mean 2,253 ± 120%"),
        ),
        claims=(Claim("better", "replay_95", "replay_80", "95% replay beats 80%"),),
        scales={
            "laptop": Scale("catch", ("catch",), 5, {**_LAPTOP, "batch.batch_sequences": 40}),
            "gpu": Scale(
                "minatar_gpu",
                MINATAR,
                5,
                {**_MINATAR, "batch.batch_sequences": 80, "batch.online_sequences": 4},
            ),
            "paper": Scale("atari_large", _atari(ALL_GAMES), 2, {"env.num_envs": 304}),
        },
        published=TABLE_11,
        remark="MuZero Reanalyse, which the paper compares with, is not here (median 1,047 ± 40%).",
    ),
    "lambda": Suite(
        title="Sensitivity to λ, the weight of the CMPO regulariser",
        figure="figure 3b",
        rows=tuple(
            _row(f"lambda_{v:g}", update__cmpo_weight=v)
            for v in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
        ),
        claims=(
            Claim("similar", "lambda_1", "lambda_0.3", "λ = 0.3 does as well as λ = 1"),
            Claim("similar", "lambda_1", "lambda_3", "λ = 3 does as well as λ = 1"),
        ),
        scales=_scales(TUNING_GAMES, gpu=_MANY),
    ),
    "clipping": Suite(
        title="Clipped and unclipped advantages over six orders of magnitude",
        figure="figure 4",
        rows=tuple(
            _row(
                f"{name}_{v:g}",
                update__clip_threshold=c,
                update__advantage_scale=v,
                update__kl_samples=None,
                agent__baseline="value",
            )
            for name, c in (("clipped", 1.0), ("unclipped", None))
            for v in _SCALES
        ),
        claims=(
            Claim(
                "similar", "clipped_1", "clipped_1000", "clipped: a scale of 1,000 changes nothing"
            ),
            Claim(
                "similar", "clipped_1", "clipped_0.001", "clipped: a scale of 0.001 changes nothing"
            ),
            Claim("better", "unclipped_1", "unclipped_100", "unclipped: a scale of 100 hurts"),
            Claim("better", "unclipped_1", "unclipped_1000", "unclipped: a scale of 1,000 hurts"),
            Claim("better", "clipped_1000", "unclipped_1000", "at 1,000 clipping saves the agent"),
        ),
        scales=_scales(("beam_rider", "gravitar"), gpu=_MANY, minatar=MINATAR[:2]),
        remark="The scale multiplies the advantages inside π_CMPO only; the KL is exact, and the "
        "baseline the learnt v̂: about Σ π q̂, any difference between actions, however small, would "
        "be blown up to the clip.",
    ),
    "tuning": Suite(
        title="How each update was tuned: its hyperparameter in multiples of 3",
        figure="table 9",
        rows=tuple(
            Row(f"{name}_{v:g}", {"update.name": name, field: v})
            for name, (field, values) in _TUNED.items()
            for v in values
        ),
        scales=_scales(TUNING_GAMES, paper_seeds=1, gpu=_MANY, minatar=MINATAR[:2], laptop_seeds=2),
        remark="The best row of each update is the one to take into the baselines.",
    ),
    "direct_indirect": Suite(
        title="Direct MPO, indirect CMPO, and both",
        figure="figures 5 and 13",
        rows=(
            _MUESLI,
            _row("direct_mpo", update__name="direct_mpo"),
            _row("cmpo", update__name="cmpo"),
            _row("mpo", update__name="mpo"),
        ),
        claims=(
            Claim("no_worse", "muesli", "direct_mpo", "Muesli does at least as well as direct MPO"),
            Claim("no_worse", "muesli", "cmpo", "Muesli does at least as well as CMPO alone"),
            Claim("better", "cmpo", "mpo", "clipping does better than constrained MPO"),
        ),
        scales=_scales(),
    ),
    "returns": Suite(
        title="Retrace, V-trace, or the model's value alone",
        figure="figure 6a",
        rows=(
            _MUESLI,
            _row(
                "vtrace",
                agent__return_estimator="vtrace",
                agent__baseline="value",
                update__beta_loo=False,
            ),
            _row("q_only", agent__return_estimator="q"),
        ),
        claims=(
            Claim("better", "muesli", "vtrace", "Retrace with q̂ beats V-trace with v̂"),
            Claim("better", "muesli", "q_only", "multi-step returns beat q̂ alone, by much"),
        ),
        scales=_scales(paper_seeds=2),
        remark="V-trace has no action values, so β-LOO, which needs them, goes with it.",
    ),
    "kl_samples": Suite(
        title="How many actions estimate KL(π_CMPO, π)",
        figure="figure 6b",
        rows=(
            _row("exact", update__kl_samples=None),
            _row("samples_16", update__kl_samples=16),
            _row("samples_3", update__kl_samples=3),
            _row("samples_1", "about 300% median", update__kl_samples=1),
            _row("oracle_1", update__kl_samples=1, update__sampled_normaliser="oracle"),
        ),
        claims=(
            Claim("similar", "samples_16", "exact", "16 samples do as well as the exact KL"),
            Claim("better", "samples_16", "samples_1", "more samples help, up to 16"),
        ),
        scales=_scales(paper_seeds=2),
    ),
    "model": Suite(
        title="What the model is trained to predict",
        figure="figure 7a",
        rows=(
            _MUESLI,
            _row("one_step", model__unroll_steps=1),
            _row("no_policy_model", model__policy_model=False),
        ),
        claims=(
            Claim("better", "muesli", "one_step", "five steps of the model beat one"),
            Claim("better", "one_step", "no_policy_model", "without policies it is worse still"),
        ),
        scales=_scales(paper_seeds=2),
    ),
    "search": Suite(
        title="Muesli beside MCTS with the same small network",
        figure="figure 7b",
        rows=(
            _MUESLI,
            _row("mcts", update__name="mcts", agent__act_with="mcts"),
            Row(
                "mcts_shallow",
                {"update.name": "mcts", "agent.act_with": "mcts", "search.max_depth": 1},
            ),
        ),
        claims=(
            Claim("better", "muesli", "mcts", "Muesli beats MCTS at this size of network"),
            Claim("better", "mcts_shallow", "mcts", "a shallow search beats a deep one"),
        ),
        scales=_scales(paper_seeds=2, laptop={"total_env_steps": 20_000}),
    ),
    "q_model": Suite(
        title="Reward and value, or q predicted as one number",
        figure="figure 14",
        rows=(_MUESLI, _row("direct_q", model__q_model="direct")),
        claims=(Claim("better", "muesli", "direct_q", "reward and value beat direct q"),),
        scales=_scales(paper_seeds=2),
        remark="The paper shows curves only; that reward + value leads is how we read them.",
    ),
    "acting": Suite(
        title="Ways to act and explore",
        figure="figure 15",
        rows=(
            _MUESLI,
            _row("act_cmpo", agent__act_with="cmpo"),
            _row("act_q_softmax", agent__act_with="q_softmax"),
        ),
        claims=(
            Claim("similar", "muesli", "act_cmpo", "acting with π_CMPO makes no difference"),
            Claim("better", "muesli", "act_q_softmax", "acting by softmax of q̂ is worse"),
        ),
        scales=_scales(paper_seeds=2),
    ),
    "beta_loo": Suite(
        title="Action-dependent baselines",
        figure="figure 16",
        rows=(_MUESLI, _row("no_beta_loo", update__beta_loo=False)),
        scales=_scales(paper_seeds=2),
        remark="The paper draws both curves and says no more.",
    ),
    "stacking": Suite(
        title="How many frames an observation stacks",
        figure="figure 17",
        rows=(
            _row("frames_1"),
            _row("frames_4", "median 562 ± 3%, mean 1,981 ± 66%", env__frame_stack=4),
            _row("frames_16", env__frame_stack=16),
        ),
        scales=_scales(paper_seeds=2, laptop={"batch.replay_capacity_steps": 40_000}),
        remark="The paper draws the curves; in tables 2 and 10 it stacks 4 frames, or 16.",
    ),
    "prior": Suite(
        title="What π_prior is mixed from",
        figure="figure 18",
        rows=(
            _MUESLI,
            _row("network_only", update__prior_mixing=False),
            _row("with_uniform", update__behaviour_prior_weight=0.0),
            _row("with_behaviour", update__uniform_prior_weight=0.0),
        ),
        scales=_scales(paper_seeds=2),
        remark="The paper draws the curves and says no more.",
    ),
    "replay": Suite(
        title="The share of replayed sequences in a batch",
        figure="table 10 (80% and 95%)",
        rows=tuple(
            _row(f"replay_{share}", batch__online_sequences=online)
            for share, online in (("0", 32), ("50", 16), ("75", 8), ("94", 2))
        ),
        claims=(Claim("better", "replay_94", "replay_75", "more replay scores higher"),),
        scales=_scales(
            laptop={"env.num_envs": 32, "batch.replay_capacity_steps": 40_000},
            gpu={"env.num_envs": 32, "batch.batch_sequences": 32},
            # Two groups of actors, each with as many environments as replay_0 has fresh sequences.
            paper={"env.num_envs": 64, "batch.batch_sequences": 32},
            paper_seeds=2,
        ),
        remark="A batch has 32 sequences in every row, so more replay is also more updates.",
    ),
    "network": Suite(
        title="The size of the network",
        figure="beside table 10",
        rows=tuple(
            _row(
                f"units_{n}", network__torso_units=n, network__core_units=n, network__model_units=n
            )
            for n in (32, 128, 512)
        ),
        claims=(Claim("better", "units_512", "units_32", "a larger network scores higher"),),
        scales=_scales(paper_seeds=2),
        remark="Table 10 has the networks of IMPALA (suite atari_57) and MuZero (suite large); "
        "this one keeps the preset's and changes its units.",
    ),
    "go": Suite(
        title="9×9 Go by self-play",
        figure="figures 8 and 11",
        rows=(
            _row("muesli", "about 75% against Pachi (10,000 simulations)"),
            _row("cmpo", update__name="cmpo"),
            _row("trpo_penalty", update__name="trpo_penalty"),
            _row("mpo", update__name="mpo"),
            _row("mcts", update__name="mcts", agent__act_with="mcts"),
        ),
        claims=(
            Claim("better", "muesli", "cmpo", "Muesli beats CMPO alone"),
            Claim("better", "muesli", "mpo", "Muesli beats MPO"),
            Claim("better", "mcts", "muesli", "on Go, search beats Muesli"),
        ),
        scales={
            "laptop": Scale(
                "tic_tac_toe",
                ("tic_tac_toe",),
                5,
                {**_LAPTOP, **_MATCHES, "total_env_steps": 60_000, "log.eval_every_steps": 5_000},
            ),
            "gpu": Scale(
                "connect_four",
                ("connect_four",),
                5,
                {**_GPU, **_MATCHES, **_MANY, "log.eval_every_steps": 100_000},
            ),
            "paper": Scale("go", ("go_9x9",), 3),
        },
        remark="Scored by evaluation against a random player; 'muesli match' plays GTP engines.",
    ),
    "mujoco": Suite(
        title="Continuous control on a small budget",
        figure="figure 12",
        rows=(
            _MUESLI,
            _row("mpo", update__name="mpo"),
            _row("trpo_penalty", update__name="trpo_penalty"),
            _row("ppo", update__name="ppo"),
            _row("pg", update__name="pg"),
        ),
        claims=(Claim("better", "muesli", "pg", "Muesli is competitive: above policy gradients"),),
        scales={
            "laptop": Scale(
                "pendulum", ("gym:Pendulum-v1",), 5, {**_QUIET, "total_env_steps": 20_000}
            ),
            "gpu": Scale("mujoco_h200", MUJOCO[1:3], 3, {**_QUIET, "total_env_steps": 1_000_000}),
            "paper": Scale("mujoco", MUJOCO, 10),
        },
        remark="The text does not name the environments; these are Gym's usual ones. Every row has "
        "the preset's entropy bonus, not its update's own; MPO's loss has no such term.",
    ),
    "atari_40m": Suite(
        title="Nine games at 40M frames",
        figure="table 3",
        rows=(_MUESLI,),
        published=TABLE_3,
        scales=_scales(FORTY_MILLION_GAMES, paper_seeds=2, paper={"total_env_steps": 10_000_000}),
    ),
    "atari_57": Suite(
        title="The 57 games",
        figure="tables 2, 10 and 11",
        rows=(_row("impala", "median 562 ± 3%, mean 1,981 ± 66%"),),
        scales=_scales(paper_seeds=2, paper_preset="atari_stacked"),
    ),
}
"""Every suite by name. Add your own, or a row: ``SUITES["baselines"].with_rows(Row(...))``."""
