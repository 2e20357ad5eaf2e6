"""A video of an agent at play, with its policy, value and q̂ drawn beside the frame."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from muesli.plots import COLOURS, style
from muesli.runners.host import host_envs
from muesli.types import StepType

if TYPE_CHECKING:
    from muesli.envs.base import HostEnv
    from muesli.runners.player import Player, Thought


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
    with warnings.catch_warnings():
        # The encoder is a child process that at once runs another program: JAX's warning about
        # forked copies of itself does not concern it.
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
        timing: dict[str, Any] = {"duration": 1000.0 / fps, "loop": 0}
        if output.suffix.lower() != ".gif":
            timing = {"fps": fps, "macro_block_size": 2}
        writer: Any = imageio.get_writer(output, **timing)
        with writer:
            for image in _play(player, act, canvas, episodes, max_steps, seed):
                writer.append_data(image)
                frames += 1
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
    key = jax.random.key(seed)
    timestep, state, score, finished = env.reset(), player.initial_state(1), 0.0, 0
    try:
        for t in range(max_steps):
            thought = player.think(timestep, state)
            frame = picture() if picture else player.env.render(timestep.observation[0])
            yield canvas.draw(frame, thought, score, t)
            if int(timestep.step_type[0]) == StepType.LAST:
                finished, score = finished + 1, 0.0
                if finished == episodes:
                    return
            action, _, state = act(timestep, state, jax.random.fold_in(key, t))
            timestep = env.step(np.asarray(action))
            score += float(timestep.reward[0])
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
                "shows its observations. MuJoCo needs EGL (a GPU driver, or the Debian package "
                "libegl1) or MUJOCO_GL=osmesa with libosmesa6"
            )
            if env is not None:
                with suppress(Exception):
                    env.close()
        else:
            return env, env.picture
    return envs.make(range(1), seed), None


class _Canvas:
    """One matplotlib figure, redrawn for every frame."""

    def __init__(self, player: Player):
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        self._plt = plt
        self.player = player
        self.figure = plt.figure(figsize=(8.0, 4.0), dpi=100)
        grid = self.figure.add_gridspec(2, 2, width_ratios=(1.0, 1.0), hspace=0.55, wspace=0.25)
        self.picture = self.figure.add_subplot(grid[:, 0])
        self.policy = self.figure.add_subplot(grid[0, 1])
        self.q = self.figure.add_subplot(grid[1, 1])
        self.image: Any = None

    def draw(self, frame: np.ndarray, thought: Thought, score: float, t: int) -> np.ndarray:
        """One frame, [H, W, 3] u8."""
        if self.image is None:
            self.image = self.picture.imshow(frame, interpolation="nearest")
            self.picture.set_axis_off()
        self.image.set_data(frame)
        self.picture.set_title(
            f"{self.player.config.env.name}   step {t}   score {score:g}", fontsize=9
        )
        self._draw_policy(thought.policy)
        what = "q" if thought.policy.ndim == 1 else "q of drawn actions"
        title = f"{what} (line: value {thought.value:.2f})"
        self._bars(self.q, np.arange(len(thought.q)), thought.q, COLOURS[1], title)
        self.q.axhline(thought.value, color="black", linewidth=1.0)
        if thought.policy.ndim == 2:
            # What matters is how they differ.
            shown = np.append(thought.q, thought.value)
            room = 0.1 * float(np.ptp(shown)) + 1e-6
            self.q.set_ylim(shown.min() - room, shown.max() + room)
        self.figure.canvas.draw()
        return np.asarray(self.figure.canvas.buffer_rgba())[..., :3].copy()  # type: ignore[attr-defined]

    def _draw_policy(self, policy: np.ndarray) -> None:
        if policy.ndim == 1:
            self._bars(self.policy, np.arange(len(policy)), policy, COLOURS[0], "policy")
            self.policy.set_ylim(0.0, 1.0)
            return
        low, middle, high = policy.T
        dimensions = np.arange(len(middle))
        self._bars(self.policy, dimensions, middle, COLOURS[0], "action (one deviation)")
        self.policy.vlines(dimensions, low, high, color="black", linewidth=1.5)
        self.policy.axhline(0.0, color="black", linewidth=0.5)
        self.policy.set_ylim(-1.05, 1.05)

    def _bars(self, axes: Any, x: np.ndarray, heights: np.ndarray, colour: str, title: str) -> None:
        axes.clear()
        axes.bar(x, heights, color=colour)
        axes.set_title(title, fontsize=9)
        axes.set_xticks(x)
        axes.tick_params(labelsize=7)
        style(axes)

    def close(self) -> None:
        """Frees the figure."""
        self._plt.close(self.figure)
