"""The chess policy network: a small residual network from an encoded board to a logit for each move.

Legend: B boards, C channels, A moves (padded).
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from grpo.board.actions import action_geometry
from grpo.board.attacks import NUM_ATTACK_COUNTS, attack_counts
from grpo.board.encoding import CASTLING, EN_PASSANT, HALFMOVE_CLOCK, MAX_HALFMOVE_CLOCK, NUM_PIECE_CODES
from grpo.settings.tree import PolicyConfig

_NUM_SIDE_FEATURES = 4 + 9 + 1  # Castling rights, en-passant file or none, half-move clock.
_NUM_UNDERPROMOTIONS = 3


class _ResidualBlock(nn.Module):
    """Two 3x3 convolutions with a skip connection, initialised as the identity, so that no normalisation layer is needed.

    Without batch normalisation, a board's logits do not depend on the other boards of its batch.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(cast(Tensor, self.second.bias))

    def forward(self, features_BC88: Tensor) -> Tensor:
        inner = functional.relu(self.first(functional.relu(features_BC88)))
        return features_BC88 + cast(Tensor, self.second(inner))


class _Attention(nn.Module):
    """One layer of self-attention over the 64 squares, for long-range relations such as lines and pins."""

    def __init__(self, channels: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.LayerNorm(channels)
        self.project_in = nn.Linear(channels, 3 * channels)
        self.project_out = nn.Linear(channels, channels)
        nn.init.zeros_(self.project_out.weight)
        nn.init.zeros_(self.project_out.bias)

    def forward(self, squares_B64C: Tensor) -> Tensor:
        batch, num_squares, channels = squares_B64C.shape
        heads = self.project_in(self.norm(squares_B64C)).view(batch, num_squares, 3, self.num_heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return squares_B64C + cast(Tensor, self.project_out(mixed.transpose(1, 2).reshape(batch, num_squares, channels)))


class PolicyNetwork(nn.Module):
    """Residual convolutions, one attention layer, and a from-square x to-square head; no dropout, no batch statistics."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        channels = config.channels
        self.piece_embedding = nn.Embedding(NUM_PIECE_CODES, channels)
        self.square_embedding = nn.Parameter(torch.randn(64, channels) * 0.1)
        self.side_projection = nn.Linear(_NUM_SIDE_FEATURES, channels)
        self.attack_projection = nn.Linear(NUM_ATTACK_COUNTS, channels) if config.sees_attacks else None
        self.blocks = nn.ModuleList(_ResidualBlock(channels) for _ in range(config.num_blocks))
        self.attention = _Attention(channels, config.num_heads)
        self.norm = nn.LayerNorm(channels)
        self.from_head = nn.Linear(channels, channels)
        self.to_head = nn.Linear(channels, channels)
        self.underpromotion_head = nn.Linear(channels, _NUM_UNDERPROMOTIONS)
        start, end, promotion = (torch.from_numpy(column) for column in action_geometry())
        self.register_buffer("move_slot", start * 64 + end, persistent=False)
        self.register_buffer("promotion_slot", promotion * 64 + end, persistent=False)

    def freeze(self, num_blocks: int) -> None:
        """Freeze the input layer and the first blocks; 0 freezes nothing."""
        if num_blocks:
            frozen = [self.piece_embedding, self.side_projection, self.attack_projection, *list(self.blocks)[:num_blocks]]
            for module in filter(None, frozen):
                module.requires_grad_(False)
            self.square_embedding.requires_grad_(False)

    def forward(self, encodings_BE: Tensor, action_ids_BA: Tensor) -> Tensor:
        """Return the logits of the given moves, shape [B, A], in the parameters' precision.

        Args:
            encodings_BE: Bytes of `encoding.encode`, shape [B, 71].
            action_ids_BA: Ids of the moves to score, legal or not, shape [B, A].
        """
        codes_B64 = encodings_BE[:, :64].long()
        sides_B1C = self.side_projection(_side_features(encodings_BE).to(self.side_projection.weight.dtype)).unsqueeze(1)
        squares = self.piece_embedding(codes_B64) + self.square_embedding + sides_B1C
        if self.attack_projection is not None:
            squares = squares + self.attack_projection(attack_counts(encodings_BE[:, :64]).to(self.attack_projection.weight.dtype))
        batch, _, channels = squares.shape
        # A [B, 64, C] tensor is a channels-last image already, so no copy is made.
        planes = squares.view(batch, 8, 8, channels).permute(0, 3, 1, 2)
        for block in self.blocks:
            planes = block(planes)
        squares = self.attention(planes.permute(0, 2, 3, 1).reshape(batch, 64, channels))
        scale = channels**-0.5
        # The heads run in full precision despite autocast: bfloat16 has three digits, too few for probability ratios near 1.
        with torch.autocast(squares.device.type, enabled=False):
            squares = self.norm(squares.float() if squares.dtype == torch.bfloat16 else squares)
            from_to = torch.einsum("bfc,btc->bft", self.from_head(squares) * scale, self.to_head(squares)).flatten(1)
            under = functional.pad(self.underpromotion_head(squares).transpose(1, 2), (0, 0, 1, 0)).flatten(1)
        move_slot, promotion_slot = cast(Tensor, self.move_slot), cast(Tensor, self.promotion_slot)
        return from_to.gather(1, move_slot[action_ids_BA]) + under.gather(1, promotion_slot[action_ids_BA])


def _side_features(encodings_BE: Tensor) -> Tensor:
    castling = encodings_BE[:, CASTLING].float()
    en_passant = functional.one_hot(encodings_BE[:, EN_PASSANT].long(), 9).float()
    clock = encodings_BE[:, HALFMOVE_CLOCK : HALFMOVE_CLOCK + 1].float() / MAX_HALFMOVE_CLOCK
    return torch.cat([castling, en_passant, clock], dim=1)
