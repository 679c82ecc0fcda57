"""Reports of the dataset: counts of boards, games and positions."""

from grpo.base.documents import Document


class Boards(Document):
    rows: int
    used_games: int
    """Games with boards."""
    splits: dict[str, int]
    natural_phases: dict[str, int]
    """Phase -> positions read."""
    phases: dict[str, int]
    """Phase -> boards."""
    sources: dict[str, int]
    """File, or `engine` -> boards."""
    labels: dict[str, int]
    """`game` (the move played) or `engine` (the best move) -> boards."""


class JoinedBoards(Boards):
    games: int
    """Usable games, and listed positions (lines of .epd and .fen files)."""
    rejected: dict[str, int]
    """Reason -> games or lines."""
    first_rejected: tuple[str, ...]
    """File, location and reason of up to ten games or lines."""
    duplicates: int
    """Positions that repeat an earlier position or its color mirror."""
    left_out: dict[str, int]
    """Reason -> positions."""
    missing: dict[str, int]
    """SPLIT/PHASE -> boards that are wanted but missing."""
