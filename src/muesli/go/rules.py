"""The rules of Go in plain Python: what referees a match and stands behind the GTP engine.

Area scoring by Tromp-Taylor, no suicide, and no whole board twice (positional superko). Points are
numbered row by row from the top left: row · size + column; a pass is size².
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

BLACK, WHITE, EMPTY = 1, -1, 0
# The letters of columns; there is no I.
COLUMNS = "ABCDEFGHJKLMNOPQRST"


class IllegalMove(ValueError):
    """A move that the rules forbid; the message says why."""


class Move(NamedTuple):
    """colour: BLACK or WHITE; point: row · size + column, or size² for a pass."""

    colour: int
    point: int


Board = tuple[int, ...]
"""One position: a colour for each point."""


@functools.cache
def neighbours(size: int) -> tuple[tuple[int, ...], ...]:
    """The points next to each point."""
    found = []
    for point in range(size * size):
        row, column = divmod(point, size)
        near = ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1))
        found.append(tuple(r * size + c for r, c in near if 0 <= r < size and 0 <= c < size))
    return tuple(found)


def chain(board: Board | list[int], size: int, start: int) -> tuple[set[int], set[int]]:
    """The connected points of one colour (or of none) around ``start``, and what borders them."""
    near, colour = neighbours(size), board[start]
    members, border, todo = {start}, set(), [start]
    while todo:
        for point in near[todo.pop()]:
            if board[point] != colour:
                border.add(point)
            elif point not in members:
                members.add(point)
                todo.append(point)
    return members, border


def place(board: Board, size: int, move: Move) -> Board:
    """The board after a stone was placed and what it captured removed; the rest is ``Game``'s."""
    if board[move.point] != EMPTY:
        raise IllegalMove("the point is occupied")
    after = list(board)
    after[move.point] = move.colour
    for point in neighbours(size)[move.point]:
        if after[point] == -move.colour:
            members, border = chain(after, size, point)
            if all(after[p] != EMPTY for p in border):
                for member in members:
                    after[member] = EMPTY
    members, border = chain(after, size, move.point)
    if all(after[p] != EMPTY for p in border):
        raise IllegalMove("suicide")
    return tuple(after)


def area(board: Board, size: int) -> tuple[int, int]:
    """Points of Black and White: stones, and empty points that border one colour alone."""
    count = {BLACK: board.count(BLACK), WHITE: board.count(WHITE)}
    seen: set[int] = set()
    for point, colour in enumerate(board):
        if colour == EMPTY and point not in seen:
            members, border = chain(board, size, point)
            seen |= members
            owners = {board[p] for p in border}
            if len(owners) == 1:
                count[owners.pop()] += len(members)
    return count[BLACK], count[WHITE]


@dataclass
class Game:
    """One game: the positions so far, beginning with the empty board (or with handicap stones)."""

    size: int = 9
    komi: float = 7.5
    superko: bool = True
    boards: list[Board] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    handicap: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.boards:
            self.boards = [(EMPTY,) * self.size**2]

    @property
    def board(self) -> Board:
        """The position now."""
        return self.boards[-1]

    @property
    def passes(self) -> int:
        """Passes at the end of the moves so far."""
        count = 0
        for move in reversed(self.moves):
            if move.point != self.size**2:
                break
            count += 1
        return count

    @property
    def to_play(self) -> int:
        """Whose turn it is, if the players take turns."""
        if self.moves:
            return -self.moves[-1].colour
        return WHITE if self.handicap else BLACK

    def after(self, move: Move, superko: bool | None = None) -> Board:
        """The board after a move; raises IllegalMove."""
        if move.point == self.size**2:
            return self.board
        board = place(self.board, self.size, move)
        strict = self.superko if superko is None else superko
        earlier = self.boards[:-1] if strict else self.boards[-2:-1]
        if board in earlier:
            raise IllegalMove("the whole board would be as it was before")
        return board

    def play(self, move: Move) -> None:
        """Makes a move; raises IllegalMove and changes nothing if the rules forbid it."""
        self.boards.append(self.after(move))
        self.moves.append(move)

    def undo(self) -> None:
        """Takes the last move back; raises IllegalMove before the first."""
        if not self.moves:
            raise IllegalMove("no move to take back")
        self.boards.pop()
        self.moves.pop()

    def place_handicap(self, points: list[int]) -> None:
        """Black stones before the first move."""
        board = list(self.board)
        for point in points:
            board[point] = BLACK
        self.boards, self.handicap = [tuple(board)], list(points)

    def legal(self, colour: int, superko: bool | None = None) -> np.ndarray:
        """Which actions a colour may take: [size² + 1] bool."""
        mask = np.ones(self.size**2 + 1, bool)
        for point in range(self.size**2):
            try:
                self.after(Move(colour, point), superko)
            except IllegalMove:
                mask[point] = False
        return mask

    def score(self) -> float:
        """Black's area minus White's minus komi."""
        black, white = area(self.board, self.size)
        return black - white - self.komi

    def observation(self, colour: int) -> np.ndarray:
        """What the agent sees before a move of ``colour``: [size, size, 7] bool."""
        before = self.boards[-2] if len(self.boards) > 1 else self.board
        planes = [
            np.array(board) == stone
            for board in (self.board, before)
            for stone in (colour, -colour, EMPTY)
        ]
        planes.append(np.full(self.size**2, colour == BLACK))
        return np.stack(planes, axis=-1).reshape(self.size, self.size, 7)


def to_vertex(point: int, size: int) -> str:
    """``D5`` for a point, ``pass`` for a pass."""
    if point == size**2:
        return "pass"
    row, column = divmod(point, size)
    return f"{COLUMNS[column]}{size - row}"


def from_vertex(text: str, size: int) -> int:
    """The point of ``D5``, in either case; raises ValueError."""
    text = text.upper()
    if text == "PASS":
        return size**2
    column, row = COLUMNS.find(text[:1]), text[1:]
    if not text or column < 0 or not row.isascii() or not row.isdigit():
        raise ValueError(f"'{text}' is no vertex")
    if column >= size or not 1 <= int(row) <= size:
        raise ValueError(f"'{text}' is not on the board")
    return (size - int(row)) * size + column


def result(score: float) -> str:
    """``B+3.5``, ``W+0.5`` or ``0``."""
    # Nine digits: a difference of a komi's tenths is not exact.
    return f"B+{score:.9g}" if score > 0 else f"W+{-score:.9g}" if score < 0 else "0"


def plain(komi: float) -> str:
    """A komi in as few digits as tell it from any other: ``7.5``, ``7``."""
    return np.format_float_positional(komi, trim="-")
