"""A Go engine that speaks the Go Text Protocol, version 2: one line in, one answer out.

It reads and writes nothing itself; ``serve`` connects it to two streams.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TextIO

from muesli.go.rules import (
    BLACK,
    COLUMNS,
    EMPTY,
    WHITE,
    Game,
    IllegalMove,
    Move,
    from_vertex,
    result,
    to_vertex,
)

Chooser = Callable[[Game, int], int]
COLOURS = {"B": BLACK, "BLACK": BLACK, "W": WHITE, "WHITE": WHITE}
MAX_ID = 2**31 - 1
MAX_KOMI = 1e6
# Python reads more than a protocol means: 1_0, digits of other scripts, nan.
_INTEGER = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.ASCII | re.IGNORECASE)


class GtpError(Exception):
    """A command that failed; the message is the answer."""


class Engine:
    """One engine at one board.

    choose(game, colour) -> a point; describe(game, colour) -> what the agent thinks, as text.
    """

    def __init__(
        self,
        choose: Chooser,
        size: int,
        komi: float,
        name: str = "muesli",
        version: str = "0",
        describe: Callable[[Game, int], str] | None = None,
    ):
        self.choose, self.size, self.name, self.version = choose, size, name, version
        self.describe = describe
        self.game = self._new(komi)
        self.closed = False
        self.commands: dict[str, Callable[[list[str]], str]] = {
            "protocol_version": lambda a: "2",
            "name": lambda a: self.name,
            "version": lambda a: self.version,
            "known_command": self._known_command,
            "list_commands": lambda a: "\n".join(self.commands),
            "quit": self._quit,
            "boardsize": self._boardsize,
            "clear_board": self._clear_board,
            "komi": self._komi,
            "fixed_handicap": self._fixed_handicap,
            "place_free_handicap": self._fixed_handicap,
            "set_free_handicap": self._set_free_handicap,
            "play": self._play,
            "genmove": self._genmove,
            "reg_genmove": self._reg_genmove,
            "undo": self._undo,
            "time_settings": self._time_settings,
            "time_left": self._time_left,
            "final_score": lambda a: result(self.game.score()),
            "final_status_list": self._final_status_list,
            "showboard": lambda a: show(self.game),
        }
        if describe is not None:
            self.commands["muesli-thoughts"] = self._thoughts

    def _new(self, komi: float) -> Game:
        # The other side may repeat a board if it is no simple ko; this one never does.
        return Game(self.size, komi, superko=False)

    def answer(self, line: str) -> str | None:
        """The answer to one line, with its closing empty line; None where nothing was asked."""
        words = clean(line).split()
        if not words:
            return None
        number = ""
        if _INTEGER.fullmatch(words[0]) and words[0].isdigit() and int(words[0]) <= MAX_ID:
            number = words.pop(0)
        if not words:
            return f"?{number} unknown command\n\n"
        command = self.commands.get(words[0])
        if command is None:
            return f"?{number} unknown command\n\n"
        try:
            text = command(words[1:])
        except GtpError as error:
            return f"?{number} {error}\n\n"
        return f"={number} {text}\n\n" if text else f"={number}\n\n"

    # --- the commands ------------------------------------------------------------------------

    def _known_command(self, arguments: list[str]) -> str:
        (name,) = _expect(arguments, 1)
        return "true" if name in self.commands else "false"

    def _quit(self, arguments: list[str]) -> str:
        self.closed = True
        return ""

    def _boardsize(self, arguments: list[str]) -> str:
        if _integer(_expect(arguments, 1)[0]) != self.size:
            raise GtpError("unacceptable size")
        return self._clear_board([])

    def _clear_board(self, arguments: list[str]) -> str:
        self.game = self._new(self.game.komi)
        return ""

    def _komi(self, arguments: list[str]) -> str:
        komi = _number(_expect(arguments, 1)[0])
        if not abs(komi) < MAX_KOMI:
            raise GtpError("syntax error")
        self.game.komi = komi
        return ""

    def _play(self, arguments: list[str]) -> str:
        colour, vertex = _expect(arguments, 2)
        try:
            move = Move(_colour(colour), from_vertex(vertex, self.size))
        except ValueError:
            raise GtpError("invalid color or coordinate") from None
        try:
            self.game.play(move)
        except IllegalMove:
            raise GtpError("illegal move") from None
        return ""

    def _genmove(self, arguments: list[str]) -> str:
        colour = _colour(_expect(arguments, 1)[0])
        point = self.choose(self.game, colour)
        self.game.play(Move(colour, point))
        return to_vertex(point, self.size)

    def _reg_genmove(self, arguments: list[str]) -> str:
        colour = _colour(_expect(arguments, 1)[0])
        return to_vertex(self.choose(self.game, colour), self.size)

    def _undo(self, arguments: list[str]) -> str:
        try:
            self.game.undo()
        except IllegalMove:
            raise GtpError("cannot undo") from None
        return ""

    def _fixed_handicap(self, arguments: list[str]) -> str:
        count = _integer(_expect(arguments, 1)[0])
        self._require_empty()
        points = handicap_points(self.size)
        if not 2 <= count <= len(points):
            raise GtpError("invalid number of stones")
        self.game.place_handicap(points[count])
        return " ".join(to_vertex(p, self.size) for p in points[count])

    def _set_free_handicap(self, arguments: list[str]) -> str:
        self._require_empty()
        try:
            points = [from_vertex(v, self.size) for v in arguments]
        except ValueError:
            points = []
        good = 2 <= len(set(points)) == len(points) < self.size**2
        if not good or self.size**2 in points:
            raise GtpError("bad vertex list")
        self.game.place_handicap(points)
        return ""

    def _require_empty(self) -> None:
        if self.game.moves or any(self.game.board):
            raise GtpError("board not empty")

    def _time_settings(self, arguments: list[str]) -> str:
        for text in _expect(arguments, 3):
            _number(text)  # whole ones by the protocol; some controllers send fractions
        return ""  # a move takes as long as it takes

    def _time_left(self, arguments: list[str]) -> str:
        colour, seconds, stones = _expect(arguments, 3)
        _colour(colour), _number(seconds), _number(stones)
        return ""

    def _final_status_list(self, arguments: list[str]) -> str:
        (status,) = _expect(arguments, 1)
        if status not in ("alive", "dead", "seki"):
            raise GtpError("syntax error")
        # By Tromp-Taylor whatever is on the board is alive.
        stones = [p for p, colour in enumerate(self.game.board) if colour != EMPTY]
        return "\n".join(to_vertex(p, self.size) for p in stones) if status == "alive" else ""

    def _thoughts(self, arguments: list[str]) -> str:
        assert self.describe is not None
        return self.describe(self.game, self.game.to_play)


def clean(line: str) -> str:
    """A line without control characters and comments, tabs as spaces."""
    line = line.replace("\t", " ").split("#", 1)[0]
    return "".join(c for c in line if c.isprintable())


def _expect(arguments: list[str], count: int) -> list[str]:
    if len(arguments) < count:
        raise GtpError("syntax error")
    return arguments[:count]


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise GtpError("syntax error")
    return int(text)


def _number(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise GtpError("syntax error")
    return float(text)


def _colour(text: str) -> int:
    try:
        return COLOURS[text.upper()]
    except KeyError:
        raise GtpError("invalid color or coordinate") from None


def handicap_points(size: int) -> dict[int, list[int]]:
    """The protocol's table: where so many handicap stones are placed."""
    if size < 7:
        return {}
    near = 2 if size < 13 else 3
    far, middle = size - 1 - near, size // 2
    at = lambda column, row: (size - 1 - row) * size + column  # noqa: E731
    corners = [at(near, near), at(far, far), at(near, far), at(far, near)]
    sides = [at(near, middle), at(far, middle)]
    ends = [at(middle, near), at(middle, far)]
    centre = [at(middle, middle)]
    table = {1: [], 2: corners[:2], 3: corners[:3], 4: corners}
    if size % 2 and size > 7:
        table |= {
            5: corners + centre,
            6: corners + sides,
            7: corners + sides + centre,
            8: corners + sides + ends,
            9: corners + sides + ends + centre,
        }
    return table


def show(game: Game) -> str:
    """The board as text: X is Black, O is White."""
    letters = "   " + " ".join(COLUMNS[: game.size])
    lines = ["", letters]
    for row in range(game.size):
        stones = game.board[row * game.size : (row + 1) * game.size]
        text = " ".join({BLACK: "X", WHITE: "O", EMPTY: "."}[s] for s in stones)
        lines.append(f"{game.size - row:2d} {text} {game.size - row}")
    return "\n".join([*lines, letters])


def serve(engine: Engine, lines: TextIO, answers: TextIO) -> None:
    """Answers every line until ``quit`` or the end of the stream."""
    for line in lines:
        answer = engine.answer(line)
        if answer is not None:
            answers.write(answer)
            answers.flush()
        if engine.closed:
            return
