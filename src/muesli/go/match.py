"""Matches at the board: colours alternate, a referee of our own watches both sides."""

from __future__ import annotations

import math
import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from muesli.config import ConfigError
from muesli.go.agent import GoAgent
from muesli.go.process import EngineFailure, GtpProcess
from muesli.go.rules import (
    BLACK,
    WHITE,
    Game,
    IllegalMove,
    Move,
    from_vertex,
    plain,
    result,
    to_vertex,
)
from muesli.go.sgf import to_sgf

RESIGN = -1


class Side(Protocol):
    """One player. Failures are EngineFailures; what was closed starts again with the next game.

    start(game, number): before game ``number`` of a match, outside of its time.
    """

    name: str
    settings: dict[str, Any]

    def start(self, game: Game, number: int) -> None: ...
    def choose(self, game: Game, colour: int) -> int: ...
    def observe(self, move: Move) -> None: ...
    def close(self) -> None: ...


class AgentSide:
    """An agent of ours."""

    def __init__(self, agent: GoAgent, name: str):
        self.agent, self.name = agent, name
        self.settings = agent.settings

    def start(self, game: Game, number: int) -> None:
        if game.size != self.agent.size:
            sizes = [f"{size}x{size}" for size in (self.agent.size, game.size)]
            raise EngineFailure("refused", f"plays on {sizes[0]}, not on {sizes[1]}")
        self.agent.begin(number, game.komi)

    def choose(self, game: Game, colour: int) -> int:
        return self.agent.choose(game, colour)

    def observe(self, move: Move) -> None:
        pass

    def close(self) -> None:
        pass


class EngineSide:
    """A GTP engine; after a failure it is started anew for the next game."""

    def __init__(self, command: Sequence[str], name: str, timeout_seconds: float):
        self.command, self.name, self.timeout_seconds = list(command), name, timeout_seconds
        self.settings = {"command": shlex.join(self.command)}
        self.size = 0
        self._process: GtpProcess | None = None

    def start(self, game: Game, number: int) -> None:
        self.size = game.size
        if self._process is None:
            self._process = GtpProcess(self.command, self.timeout_seconds)
        for line in (f"boardsize {game.size}", "clear_board", f"komi {plain(game.komi)}"):
            self._ask(line)

    def choose(self, game: Game, colour: int) -> int:
        answer = self._ask(f"genmove {_letter(colour)}")
        if answer.lower() == "resign":
            return RESIGN
        try:
            return from_vertex(answer, self.size)
        except ValueError as error:
            self.close()
            raise EngineFailure("protocol", f"moved to '{answer[:40]}'") from error

    def observe(self, move: Move) -> None:
        self._ask(f"play {_letter(move.colour)} {to_vertex(move.point, self.size)}")

    def opinion(self) -> str | None:
        """How it scores the game, if it has an opinion; many engines refuse to say."""
        try:
            return self._ask("final_score", may_refuse=True)
        except EngineFailure:
            return None

    def _ask(self, line: str, may_refuse: bool = False) -> str:
        if self._process is None:
            raise EngineFailure("crash", "is not running")
        try:
            return self._process.ask(line)
        except EngineFailure as error:
            if not (may_refuse and error.kind == "refused"):
                self.close()
            raise

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None


@dataclass(frozen=True)
class Outcome:
    """How a game ended. winner: BLACK, WHITE or 0; reason: score, move limit, resignation, time,
    illegal move, or the kind of an EngineFailure; score: Black's margin on the last board.
    """

    winner: int
    reason: str
    text: str
    score: float
    detail: str = ""


def play_game(
    game: Game,
    black: Side,
    white: Side,
    max_moves: int,
    game_seconds: float = math.inf,
    number: int = 1,
) -> tuple[Outcome, dict[int, float]]:
    """Plays game ``number`` to its end; the seconds each colour took to choose."""
    sides, seconds = {BLACK: black, WHITE: white}, {BLACK: 0.0, WHITE: 0.0}
    colour = BLACK

    def lost(colour: int, reason: str, letter: str, detail: str = "") -> Outcome:
        winner = f"{_letter(-colour)}+{letter}"
        return Outcome(-colour, reason, winner, game.score(), f"{sides[colour].name} {detail}")

    try:
        for colour in (BLACK, WHITE):
            sides[colour].start(game, number)
        while game.passes < 2 and len(game.moves) < max_moves:
            colour = game.to_play
            began = time.monotonic()
            point = sides[colour].choose(game, colour)
            seconds[colour] += time.monotonic() - began
            if seconds[colour] > game_seconds:
                return lost(colour, "time", "T", f"took {seconds[colour]:.0f} s"), seconds
            if point == RESIGN:
                return lost(colour, "resignation", "R", "resigned"), seconds
            move = Move(colour, point)
            try:
                game.play(move)
            except IllegalMove as error:
                sides[colour].close()  # its board is another than the referee's
                where = to_vertex(point, game.size)
                return lost(colour, "illegal move", "F", f"played {where}: {error}"), seconds
            colour = -colour
            sides[colour].observe(move)
    except EngineFailure as failure:
        letter = "T" if failure.kind == "timeout" else "F"
        return lost(colour, failure.kind, letter, str(failure)), seconds
    score = game.score()
    reason = "score" if game.passes >= 2 else "move limit"
    winner = BLACK if score > 0 else WHITE if score < 0 else 0
    return Outcome(winner, reason, result(score), score), seconds


class Played(NamedTuple):
    """One finished game: its row in the summary, its moves, and itself as SGF."""

    row: dict[str, Any]
    moves: tuple[Move, ...]
    sgf: str


class Match:
    """Two sides and what holds for every game between them. max_moves: 3 size² unless given."""

    def __init__(
        self,
        ours: Side,
        theirs: Side,
        size: int,
        komi: float,
        max_moves: int | None = None,
        game_seconds: float = math.inf,
    ):
        self.ours, self.theirs, self.size, self.komi = ours, theirs, size, komi
        self.max_moves, self.game_seconds = max_moves or 3 * size**2, game_seconds

    @property
    def about(self) -> dict[str, dict[str, Any]]:
        """How each side plays."""
        sides = {"ours": self.ours, "theirs": self.theirs}
        return {whose: {"name": side.name, **side.settings} for whose, side in sides.items()}

    def begin(self) -> None:
        """Raises a ConfigError where a side cannot even begin: it would lose every game by that."""
        for whose, side in (("ours", self.ours), ("opponent", self.theirs)):
            try:
                side.start(Game(self.size, self.komi), 0)
            except EngineFailure as failure:
                told = " ".join(str(failure).split())  # an engine may answer in several lines
                raise ConfigError(f"{whose}: {side.name} cannot begin: it {told}") from failure

    def games(self, count: int) -> Iterator[Played]:
        """Plays games 1 to ``count``."""
        return map(self.play, range(1, count + 1))

    def play(self, number: int) -> Played:
        """Plays one game; in those of odd numbers we are Black."""
        game = Game(self.size, self.komi)
        colour = BLACK if number % 2 else WHITE
        sides = (self.ours, self.theirs)
        black, white = sides if colour == BLACK else reversed(sides)
        outcome, seconds = play_game(game, black, white, self.max_moves, self.game_seconds, number)
        row: dict[str, Any] = {
            "game": number,
            "colour": "black" if colour == BLACK else "white",
            "result": outcome.text,
            "points": 0.5 * (1 + outcome.winner * colour),
            "reason": outcome.reason,
            "detail": outcome.detail,
            "moves": len(game.moves),
            "seconds_ours": seconds[colour],
            "seconds_theirs": seconds[-colour],
        }
        if isinstance(self.theirs, EngineSide) and outcome.reason in ("score", "move limit"):
            row["opponent_says"] = self.theirs.opinion()
        note = f"{outcome.reason} {outcome.detail}".strip()
        sgf = to_sgf(game, black.name, white.name, outcome.text, note)
        return Played(row, tuple(game.moves), sgf)

    def close(self) -> None:
        """Ends the engines."""
        self.ours.close()
        self.theirs.close()


# How games end between two players who both keep to the rules and to their time.
PLAYED_OUT = ("score", "move limit", "resignation")


def summarise(played: Sequence[Played]) -> dict[str, Any]:
    """The numbers of a match; a draw is half a win."""
    rows = sorted((game.row for game in played), key=lambda row: row["game"])
    points = sum(row["points"] for row in rows)
    low, high = wilson(points, len(rows))

    def of(colour: str) -> dict[str, Any]:
        mine = [row["points"] for row in rows if row["colour"] == colour]
        return {"games": len(mine), "points": sum(mine)}

    failures: dict[str, Counter[str]] = {"ours": Counter(), "theirs": Counter()}
    for row in rows:
        if row["reason"] not in PLAYED_OUT:
            failures["theirs" if row["points"] else "ours"][row["reason"]] += 1
    moves = sum(row["moves"] for row in rows)
    return {
        "games": len(rows),
        "points": points,
        "win_rate": points / len(rows) if rows else None,
        "wilson_low": low,
        "wilson_high": high,
        "as_black": of("black"),
        "as_white": of("white"),
        "reasons": dict(Counter(row["reason"] for row in rows)),
        "failures": failures,
        "moves_mean": moves / len(rows) if rows else None,
        "seconds_per_move_ours": 2 * sum(r["seconds_ours"] for r in rows) / max(1, moves),
        "seconds_per_move_theirs": 2 * sum(r["seconds_theirs"] for r in rows) / max(1, moves),
        # Games that repeat say nothing new: with few different ones the interval is too narrow.
        "distinct_games": len({game.moves for game in played}),
        "rows": rows,
    }


def in_words(summary: Mapping[str, Any]) -> str:
    """The result in one line, which also says what was not won or lost at the board."""
    if not summary["games"]:
        return "no game was finished"
    line = (
        f"{summary['points']:g} of {summary['games']} games: {summary['win_rate']:.1%} "
        f"(95%: {summary['wilson_low']:.1%} to {summary['wilson_high']:.1%})"
    )
    failures = summary["failures"]
    said = [
        f"{n} {reason} of {whose}" for whose in failures for reason, n in failures[whose].items()
    ]
    return f"{line}; decided by failures: {', '.join(said)}" if said else line


def wilson(points: float, games: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's 95% interval of a win rate."""
    if games == 0:
        return 0.0, 1.0
    rate, square = points / games, z * z / games
    middle = (rate + square / 2) / (1 + square)
    half = z / (1 + square) * math.sqrt(rate * (1 - rate) / games + square / (4 * games))
    return max(0.0, middle - half), min(1.0, middle + half)


def _letter(colour: int) -> str:
    return "B" if colour == BLACK else "W"
