"""Diagrams: a finished game with numbered stones, and what the agent thought along the way."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from muesli.go.agent import GoAgent
from muesli.go.rules import BLACK, COLUMNS, Board, Game, Move, result, to_vertex
from muesli.go.sgf import to_sgf
from muesli.plots import COLOURS, style

if TYPE_CHECKING:
    from muesli.runners.player import Thought

WOOD, LINE = "#e8c88a", "#5a4628"


def describe(agent: GoAgent, game: Game, colour: int) -> str:
    """The agent's value of a position and its five likeliest moves, as text."""
    thought = agent.think(game, colour)
    lines = [f"value {thought.value:+.3f} for {'black' if colour == BLACK else 'white'}"]
    for point in np.argsort(-thought.policy)[:5]:
        share, q = thought.policy[point], thought.q[point]
        lines.append(f"{to_vertex(int(point), game.size):>4} {share:6.1%}  q {q:+.3f}")
    return "\n".join(lines)


def self_play(agent: GoAgent) -> tuple[Game, list[Thought]]:
    """One game of the agent against itself, with what it thought before every move."""
    game, thoughts = Game(agent.size, agent.komi), []
    while game.passes < 2 and len(game.moves) < 2 * game.size**2:
        colour = game.to_play
        thoughts.append(agent.think(game, colour))
        game.play(Move(colour, agent.choose(game, colour)))
    return game, thoughts


def record_game(agent: GoAgent, directory: Path, name: str) -> list[Path]:
    """Plays one game and writes ``game.png``, ``thoughts.png`` and ``game.sgf``."""
    game, thoughts = self_play(agent)
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / file for file in ("game.png", "thoughts.png", "game.sgf")]
    draw_game(game, paths[0], name)
    draw_thoughts(game, thoughts, paths[1])
    text = to_sgf(game, name, name, result(game.score()))
    paths[2].write_text(text, encoding="utf-8")
    return paths


def _figure(width: float, height: float) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt, plt.figure(figsize=(width, height), dpi=120)


def draw_game(game: Game, output: Path, name: str = "") -> None:
    """The final board; each stone carries the number of the move that placed it."""
    plt, figure = _figure(5.0, 5.6)
    axes = figure.add_axes((0.06, 0.03, 0.9, 0.84))
    _board(axes, game.board, game.size)
    for number, move in enumerate(game.moves, start=1):
        # What was captured is gone; a point played twice shows its last stone.
        last = not any(later.point == move.point for later in game.moves[number:])
        if move.point < game.size**2 and game.board[move.point] == move.colour and last:
            row, column = divmod(move.point, game.size)
            ink = "white" if move.colour == BLACK else "black"
            axes.text(column, row, str(number), color=ink, ha="center", va="center", fontsize=8)
    title = f"{result(game.score())} after {len(game.moves)} moves, komi {game.komi:g}"
    figure.suptitle(f"{name}\n{title}" if name else title, fontsize=10)
    figure.savefig(output)
    plt.close(figure)


def draw_thoughts(game: Game, thoughts: list[Thought], output: Path, boards: int = 4) -> None:
    """Policy and q̂ on some boards of a game, and the value over all its moves, for Black."""
    plt, figure = _figure(2.6 * boards, 7.4)
    grid = figure.add_gridspec(3, boards, height_ratios=(1.0, 1.0, 0.7), hspace=0.3, wspace=0.15)
    shown = np.linspace(0, len(thoughts) - 1, boards + 1)[:-1].astype(int)
    for column, t in enumerate(shown):
        colour = "black" if game.moves[t].colour == BLACK else "white"
        played = to_vertex(game.moves[t].point, game.size)
        axes = figure.add_subplot(grid[0, column])
        axes.set_title(f"policy, {colour}'s move {t + 1}: {played}", fontsize=8)
        _heat(axes, game.boards[t], game.size, thoughts[t].policy, "Greens", 0.0, None)
        axes = figure.add_subplot(grid[1, column])
        axes.set_title(f"q̂ for {colour} (value {thoughts[t].value:+.2f})", fontsize=8)
        q = np.where(thoughts[t].policy > 0.0, thoughts[t].q, np.nan)
        _heat(axes, game.boards[t], game.size, q, "RdYlGn", -1.0, 1.0)
    axes = figure.add_subplot(grid[2, :])
    sign = np.array([move.colour for move in game.moves])
    moves = np.arange(1, len(thoughts) + 1)
    axes.plot(moves, sign * [t.value for t in thoughts], color=COLOURS[0], label="value")
    best = [t.q[np.argmax(t.policy)] for t in thoughts]
    axes.plot(moves, sign * best, color=COLOURS[1], label="q̂ of the likeliest move", alpha=0.8)
    axes.axhline(0.0, color="black", linewidth=0.7)
    axes.set(ylim=(-1.1, 1.1), xlabel="move", ylabel="for Black")
    axes.set_title(f"the game ended {result(game.score())}", fontsize=8)
    axes.legend(fontsize=8, frameon=False)
    style(axes)
    figure.savefig(output, bbox_inches="tight")
    plt.close(figure)


def _board(axes: Any, board: Board, size: int, wood: bool = True) -> None:
    axes.set_aspect("equal")
    axes.set_facecolor(WOOD if wood else "white")
    for line in range(size):
        axes.plot([0, size - 1], [line, line], color=LINE, linewidth=0.7, zorder=1)
        axes.plot([line, line], [0, size - 1], color=LINE, linewidth=0.7, zorder=1)
    for point, colour in enumerate(board):
        if colour:
            row, column = divmod(point, size)
            face = "#181818" if colour == BLACK else "#fafafa"
            _disc(axes, column, row, face)
    axes.set(xlim=(-0.7, size - 0.3), ylim=(size - 0.3, -0.7))
    axes.set_xticks(range(size), list(COLUMNS[:size]), fontsize=7)
    axes.set_yticks(range(size), [str(size - r) for r in range(size)], fontsize=7)
    axes.tick_params(length=0)


def _disc(axes: Any, x: float, y: float, face: str) -> None:
    from matplotlib.patches import Circle

    axes.add_patch(Circle((x, y), 0.45, facecolor=face, edgecolor="#303030", lw=0.7, zorder=2))


def _heat(
    axes: Any, board: Board, size: int, values: np.ndarray, colours: str, low: float, high: Any
) -> None:
    """One number for each point as colour, and the pass beneath the board."""
    _board(axes, board, size, wood=False)
    points = np.where(np.array(board) == 0, values[:-1], np.nan).reshape(size, size)
    axes.imshow(points, cmap=colours, vmin=low, vmax=high, alpha=0.85, zorder=1.5)
    axes.set(xlim=(-0.7, size - 0.3), ylim=(size - 0.3, -0.7))
    axes.set_xlabel(f"pass {values[-1]:.2f}", fontsize=7, labelpad=1)
