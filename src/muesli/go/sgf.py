"""Games as SGF files, which every Go program reads."""

from __future__ import annotations

from muesli.go.rules import BLACK, Game, plain


def to_sgf(game: Game, black: str, white: str, outcome: str, comment: str = "") -> str:
    """One game as SGF. outcome: as in ``B+3.5``."""
    at = lambda point: _point(point, game.size)  # noqa: E731
    header = (
        f"(;GM[1]FF[4]CA[UTF-8]AP[muesli]RU[Tromp-Taylor]SZ[{game.size}]KM[{plain(game.komi)}]"
        f"PB[{_text(black)}]PW[{_text(white)}]RE[{_text(outcome)}]"
    )
    if game.handicap:
        header += f"HA[{len(game.handicap)}]AB" + "".join(f"[{at(p)}]" for p in game.handicap)
    if comment:
        header += f"C[{_text(comment)}]"
    moves = "".join(f";{'B' if m.colour == BLACK else 'W'}[{at(m.point)}]" for m in game.moves)
    return f"{header}\n{moves})\n"


def _point(point: int, size: int) -> str:
    """Column, then row from the top, as letters; a pass is empty."""
    if point == size**2:
        return ""
    row, column = divmod(point, size)
    return chr(ord("a") + column) + chr(ord("a") + row)


def _text(text: str) -> str:
    return text.replace("\\", "\\\\").replace("]", "\\]")
