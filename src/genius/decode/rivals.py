"""The listwise term: the right item must score above the items that are easily taken for it.

Cross-entropy teaches each code by itself, given right codes before it; what a search compares is the score of
whole items. For each query the target and its nearest rivals among the items are scored in the same pass, and

    L_list = -log softmax_i(sum over levels of log p(code of item i)) at the target.

Other positives of the query and items with the target's own codes are no rivals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from genius.data.pairs import Pairs


@dataclass(frozen=True, slots=True)
class Rivals:
    """How much the listwise term weighs, and where its rivals come from."""

    weight: float = 1.0
    count: int = 15  # rivals of each query; a step costs about that many times more in the layers
    drawn: int = 32_768  # random items among which the nearest are taken

    def draw(self, items: int, generator: torch.Generator) -> Tensor:
        """Item rows to look for rivals in: all of them where there are no more than `drawn`."""
        if items <= self.drawn:
            return torch.arange(items, device=generator.device)
        return torch.randint(items, (self.drawn,), generator=generator, device=generator.device)


@torch.no_grad()
def line_up(
    z: Tensor,
    query: Tensor,
    target: Tensor,
    drawn: Tensor,
    item_z: Tensor,
    codes: Tensor,
    pairs: Pairs,
    count: int,
) -> tuple[Tensor, Tensor]:
    """Item rows (batch, 1 + count): the target, then those of `drawn` nearest to z; and whether each counts.

    `z` (batch, dim), `query` and `target` (batch,) rows; `item_z` and `codes` of all items.
    """
    near = (z.to(item_z.dtype) @ item_z[drawn].T).topk(min(count, len(drawn)), dim=1).indices
    rival = drawn[near]
    usable = ~pairs.are_positive(query[:, None], rival)
    usable &= (codes[rival] != codes[target][:, None]).any(-1)
    first = torch.ones_like(usable[:, :1])
    return torch.cat([target[:, None], rival], 1), torch.cat([first, usable], 1)


def list_loss(logits: Sequence[Tensor], codes: Tensor, usable: Tensor) -> Tensor:
    """L_list, mean over the batch.

    `logits` (batch, n, sizes[level]) per level, `codes` (batch, n, levels), `usable` (batch, n); item 0 is
    the target.
    """
    score = torch.zeros(usable.shape, device=usable.device)
    for level, scores in enumerate(logits):
        scores = scores.float()
        own = scores.gather(-1, codes[:, :, level, None]).squeeze(-1)
        score = score + own - scores.logsumexp(-1)
    score = score.masked_fill(~usable, -torch.inf)
    return F.cross_entropy(score, torch.zeros(len(score), dtype=torch.long, device=score.device))
