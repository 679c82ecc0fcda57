"""Rank correlations (Spearman, Kendall) with ties between two scores of the same moves, per board.

Legend: B boards, A moves (padded). Both are Daniels' general coefficient (Biometrika 33, 1944) of the signs of all differences: Kendall's
of the signs themselves, Spearman's of their sums by row, which are twice the centred mid-ranks.
"""

from torch import Tensor


def rank_correlations(one_BA: Tensor, other_BA: Tensor, is_move_BA: Tensor) -> tuple[Tensor, Tensor]:
    """Return Spearman's rho and Kendall's tau-b of each board, [B] and [B] float64, using memory for B x A x A signs.

    They are NaN where all moves have the same score, and for a single move.

    Args:
        one_BA: Scores of the moves, [B, A].
        other_BA: Other scores of the same moves, [B, A].
        is_move_BA: False on padding, [B, A].
    """
    if not one_BA.shape == other_BA.shape == is_move_BA.shape:
        raise ValueError(f"scores {tuple(one_BA.shape)} and {tuple(other_BA.shape)} and mask {tuple(is_move_BA.shape)} differ in shape")
    is_pair_BAA = is_move_BA[:, :, None] & is_move_BA[:, None, :]
    one_BAA, other_BAA = _signs(one_BA, is_pair_BAA), _signs(other_BA, is_pair_BAA)
    spearman = _cosine(one_BAA.sum(2), other_BAA.sum(2))
    return spearman, _cosine(one_BAA.flatten(1), other_BAA.flatten(1))


def _signs(scores_BA: Tensor, is_pair_BAA: Tensor) -> Tensor:
    """Return the sign of each difference between two moves, [B, A, A] float32, which holds sums of 218 x 218 of them exactly."""
    greater = scores_BA[:, :, None] > scores_BA[:, None, :]
    return (greater.float() - greater.transpose(1, 2).float()) * is_pair_BAA


def _cosine(one_BN: Tensor, other_BN: Tensor) -> Tensor:
    """Return the cosine of two rows of whole numbers, [B] float64; NaN where one of them is all zeros."""
    one_BN, other_BN = one_BN.double(), other_BN.double()
    return (one_BN * other_BN).sum(1) / ((one_BN**2).sum(1) * (other_BN**2).sum(1)).sqrt()
