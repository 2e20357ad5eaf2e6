"""A video of an agent at play, with its policy, value and q̂ drawn beside the frame."""

from __future__ import annotations

import re
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from muesli.plots import COLOURS, style
from muesli.runners.host import host_envs
from muesli.types import StepType

if TYPE_CHECKING:
    from muesli.envs.base import HostEnv
    from muesli.runners.player import Player, Thought

_REMEMBERED = 120
"""Steps over which v̂ is drawn."""
_SHORTEST = 30
"""The axis of the past is at least so many steps long."""
_MANY_ACTIONS = 24
"""The most actions that are told apart by name."""
_TITLE: dict[str, Any] = {"fontsize": 9}
_MARGINS: dict[str, Any] = {
    "left": 0.03,
    "right": 0.98,
    "top": 0.93,
    "bottom": 0.07,
    "hspace": 0.6,
    "wspace": 0.16,
}


class _Play(NamedTuple):
    """The moment of a frame.

    score, reward, value: so far, of the step before, and v̂ of what is to come, of two players the
    first one's; value is nan where an episode is over; action: what is done next, or None where an
    episode ends; begins: whether this opens an episode.
    """

    step: int
    score: float
    reward: float
    value: float
    action: np.ndarray | None
    begins: bool


def record(
    player: Player,
    output: Path,
    episodes: int,
    max_steps: int,
    fps: int,
    seed: int,
    act_with: str = "prior",
    greedy: bool = False,
) -> int:
    """Plays ``episodes`` episodes and writes them to ``output``; returns the number of frames.

    Whatever it acts with, policy, value and q̂ are shown as the prior network sees them.
    """
    import imageio.v2 as imageio

    act, canvas = player.actor(act_with, greedy), _Canvas(player)
    frames = 0
    output.parent.mkdir(parents=True, exist_ok=True)
    # What is there under its own name is whole. The encoder goes by the suffix.
    partial = output.with_name(f".{output.stem}.partial{output.suffix}")
    with warnings.catch_warnings():
        # The encoder is a child process that at once runs another program: JAX's warning about
        # forked copies of itself does not concern it.
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
        timing: dict[str, Any] = {"duration": 1000.0 / fps, "loop": 0}
        if output.suffix.lower() != ".gif":
            timing = {"fps": fps, "macro_block_size": 2}
        try:
            writer: Any = imageio.get_writer(partial, **timing)
            with writer:
                for image in _play(player, act, canvas, episodes, max_steps, seed):
                    writer.append_data(image)
                    frames += 1
            partial.replace(output)
        finally:
            partial.unlink(missing_ok=True)
            canvas.close()
    return frames


def first_frame(video: Path, output: Path) -> None:
    """The picture a video begins with."""
    import imageio.v2 as imageio

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
        reader: Any = imageio.get_reader(video)
        with reader:
            imageio.imwrite(output, reader.get_data(0))


def _play(
    player: Player,
    act: Callable[..., Any],
    canvas: _Canvas,
    episodes: int,
    max_steps: int,
    seed: int,
) -> Iterator[np.ndarray]:
    env, picture = _film(player, seed)
    key, turns = jax.random.key(seed), player.parts.spec.players == 2
    timestep, state, score, finished, side = env.reset(), player.initial_state(1), 0.0, 0, 1.0
    try:
        for t in range(max_steps):
            kind = int(timestep.step_type[0])
            begins, ends = kind == StepType.FIRST, kind == StepType.LAST
            # A reward is that of the player who has moved, v̂ that of the one who is about to.
            reward = side * float(timestep.reward[0])
            side = -side if turns and not begins else 1.0
            score = reward if begins else score + reward
            thought = player.think(timestep, state)
            over = ends and float(timestep.discount[0]) == 0.0
            value = np.nan if over else side * thought.value
            frame = picture() if picture else player.env.render(timestep.observation[0])
            action, _, state = act(timestep, state, jax.random.fold_in(key, t))
            done = None if ends else np.asarray(action)[0]
            yield canvas.draw(frame, thought, _Play(t, score, reward, value, done, begins))
            finished += ends
            if finished == episodes:
                return
            timestep = env.step(np.asarray(action))
    finally:
        env.close()


def _film(player: Player, seed: int) -> tuple[HostEnv, Callable[[], np.ndarray] | None]:
    """A copy to play in, and what takes its picture where it can be drawn on this machine."""
    envs = host_envs(player.env)
    if envs.film is not None:
        env: HostEnv | None = None
        try:
            env = envs.film(seed)
            assert env.picture is not None
            env.reset()
            env.picture()
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            print(  # noqa: T201
                f"{player.config.env.name} cannot be drawn on this machine ({reason}); the video "
                f"shows its observations{_remedy(reason)}"
            )
            if env is not None:
                with suppress(Exception):
                    env.close()
        else:
            return env, env.picture
    return envs.make(range(1), seed), None


def _remedy(reason: str) -> str:
    """What helps where drawing fails for this reason, if that is known."""
    if "pygame" in reason or "classic-control" in reason or "toy-text" in reason:
        return ". pip install 'muesli-rl[gym]' brings pygame"
    if re.search(r"(?i)mujoco|egl|osmesa|glfw|opengl|GL\b", reason):
        return (
            ". MuJoCo needs EGL (a GPU driver, or the Debian package libegl1) or "
            "MUJOCO_GL=osmesa with libosmesa6"
        )
    return ""


class _Canvas:
    """One matplotlib figure, redrawn for every frame."""

    def __init__(self, player: Player):
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        self._plt = plt
        self.title = player.config.env.name
        self.discrete = player.parts.spec.num_actions is not None
        self.names = player.parts.spec.action_names
        self.two_players = player.parts.spec.players == 2
        self.baseline = "v̂" if player.config.agent.baseline == "value" else "Σ π q̂"
        self.figure = plt.figure(figsize=(8.4, 4.4), dpi=100, facecolor="white")
        grid = self.figure.add_gridspec(
            3, 2, **_MARGINS, width_ratios=(1.0, 1.05), height_ratios=(1.0, 1.0, 0.8)
        )
        self.picture = self.figure.add_subplot(grid[:, 0])
        self.policy, self.q, self.past = (self.figure.add_subplot(grid[i, 1]) for i in range(3))
        self.image: Any = None
        self.values: deque[float] = deque(maxlen=_REMEMBERED)
        self.rewards: deque[float] = deque(maxlen=_REMEMBERED)

    def draw(self, frame: np.ndarray, thought: Thought, play: _Play) -> np.ndarray:
        """One frame, [H, W, 3] u8."""
        if self.image is None:
            self.image = self.picture.imshow(frame, interpolation="nearest")
            self.picture.set_axis_off()
        self.image.set_data(frame)
        self.picture.set_title(f"{self.title}   step {play.step}   score {play.score:g}", **_TITLE)
        if play.begins:
            self.values.clear()
            self.rewards.clear()
        self.values.append(play.value)
        self.rewards.append(play.reward)
        if play.action is None:
            # An episode's last state: nothing is chosen there.
            for axes, title in ((self.policy, "policy"), (self.q, "q̂")):
                axes.clear()
                self._name(axes, 0)
                self._finish(axes, f"{title}: the episode is over")
        else:
            self._draw_policy(thought.policy, play.action)
            self._draw_q(thought, play.action)
        self._draw_past(play.step)
        self.figure.canvas.draw()
        return np.asarray(self.figure.canvas.buffer_rgba())[..., :3].copy()  # type: ignore[attr-defined]

    def _draw_policy(self, policy: np.ndarray, action: np.ndarray) -> None:
        if self.discrete:
            self._bars(self.policy, policy, 0.0, COLOURS[0], action, "policy")
            self.policy.set_ylim(0.0, 1.0)
            self._name(self.policy, len(policy))
            return
        low, middle, high = policy.T
        title = "action: mean, one deviation, and what was done (dots)"
        self._bars(self.policy, middle, 0.0, COLOURS[0], None, title)
        dimensions = np.arange(len(middle))
        self.policy.vlines(dimensions, low, high, color="black", linewidth=1.5)
        self.policy.axhline(0.0, color="black", linewidth=0.5)
        self.policy.set_ylim(-1.1, 1.1)
        self.policy.plot(dimensions, action, "o", color=COLOURS[1], markersize=4)
        self._name(self.policy, len(middle))

    def _draw_q(self, thought: Thought, action: np.ndarray) -> None:
        """Bars from the baseline to q̂: what the agent thinks to gain or lose by an action."""
        gains, value = thought.q - thought.baseline, thought.baseline
        if self.discrete:
            gains = np.where(thought.policy > 0.0, gains, np.nan)  # not of illegal actions
        what = "q̂" if self.discrete else "q̂ of drawn actions"
        what += " for who moves" if self.two_players else ""
        chosen = action if self.discrete else None
        self._bars(
            self.q, gains, value, COLOURS[1], chosen, f"{what}, from {self.baseline} = {value:.2f}"
        )
        self.q.axhline(value, color="black", linewidth=1.0)
        largest = max(float(np.nanmax(np.abs(gains))), 1e-6 + 1e-3 * abs(value))
        self.q.set_ylim(value - 1.2 * largest, value + 1.2 * largest)
        self._name(self.q, len(gains) if self.discrete else 0)

    def _draw_past(self, step: int) -> None:
        self.past.clear()
        steps = np.arange(step - len(self.values) + 1, step + 1)
        rewards = np.array(self.rewards)
        for sign, colour in ((1.0, COLOURS[2]), (-1.0, COLOURS[3])):
            for at in steps[sign * rewards > 0.0]:
                self.past.axvline(at, ymax=0.15, color=colour, linewidth=1.5)
        self.past.plot(steps, self.values, color="black", linewidth=1.4)
        self.past.set_xlim(steps[0] - 1, steps[0] + max(_SHORTEST, len(steps)))
        whose = " of the first player" if self.two_players else ""
        self._finish(self.past, f"v̂{whose}, and rewards (pink: below 0)")

    def _bars(
        self,
        axes: Any,
        heights: np.ndarray,
        bottom: float,
        colour: str,
        chosen: np.ndarray | None,
        title: str,
    ) -> None:
        axes.clear()
        bars = axes.bar(np.arange(len(heights)), heights, bottom=bottom, color=colour, alpha=0.45)
        if chosen is not None:
            bars[int(chosen)].set(alpha=1.0, edgecolor="black", linewidth=1.0)
        # Bars of illegal actions are not there; the others stay where the policy's are.
        axes.set_xlim(-0.6, len(heights) - 0.4)
        self._finish(axes, title)

    def _name(self, axes: Any, bars: int) -> None:
        """Actions by their names, or numbers; those of many are left out."""
        shown = range(bars) if bars <= _MANY_ACTIONS else []
        axes.set_xticks(shown)
        if self.names and shown:
            axes.set_xticklabels(self.names)

    def _finish(self, axes: Any, title: str) -> None:
        axes.set_title(title, **_TITLE)
        axes.tick_params(labelsize=7)
        axes.locator_params(axis="y", nbins=4)
        style(axes)

    def close(self) -> None:
        """Frees the figure."""
        self._plt.close(self.figure)
