"""Chess positions: encoding, action ids, attacks, game phase, draws by rule."""

from typing import Final

MAX_LEGAL_MOVES: Final = 218  # Most legal moves of a reachable position, https://www.chessprogramming.org/Encoding_Moves.
