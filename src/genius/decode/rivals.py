"""The listwise loss: the target must score above its rivals, the hard negatives among the items.

Cross-entropy trains each code by itself, given the right codes before it; a search compares the scores of
whole items. For each query the target and its nearest rivals are scored in the same pass, and

    L_list = -log softmax_i(sum over levels of log p(code of item i)) at the target.

Other positives of the query and items with the target's own codes are not used as rivals.
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
    """The weight of the listwise loss, and how its rivals are chosen."""

    weight: float = 1.0
    count: int = 15  # rivals of each query; the layers cost about that many times more
    drawn: int = 32_768  # size of the random sample of items in which the nearest are looked for

    def sample(self, items: int, generator: torch.Generator) -> Tensor:
        """Item rows to look for rivals in: all of them if there are no more than `drawn`."""
        if items <= self.drawn:
            return torch.arange(items, device=generator.device)
        return torch.randint(items, (self.drawn,), generator=generator, device=generator.device)


@torch.no_grad()
def nearest_rivals(
    z: Tensor,
    query: Tensor,
    target: Tensor,
    sample: Tensor,
    item_z: Tensor,
    codes: Tensor,
    pairs: Pairs,
    count: int,
) -> tuple[Tensor, Tensor]:
    """Item rows (batch, 1 + count): the target, then those of `sample` nearest to z; and which are usable.

    `z` (batch, dim), `query` and `target` (batch,) rows; `item_z` and `codes` of all items.
    """
    near = (z.to(item_z.dtype) @ item_z[sample].T).topk(min(count, len(sample)), dim=1).indices
    rival = sample[near]
    usable = ~pairs.are_positive(query[:, None], rival)
    usable &= (codes[rival] != codes[target][:, None]).any(-1)
    first = torch.ones_like(usable[:, :1])
    return torch.cat([target[:, None], rival], 1), torch.cat([first, usable], 1)


def list_loss(logits: Sequence[Tensor], codes: Tensor, usable: Tensor, *, normalised: bool = False) -> Tensor:
    """L_list, mean over the batch.

    `logits` (batch, n, sizes[level]) per level, `codes` (batch, n, levels), `usable` (batch, n); item 0 is
    the target. `normalised`: the logits are log-probabilities already.
    """
    score = torch.zeros(usable.shape, device=usable.device)
    for level, scores in enumerate(logits):
        scores = scores.float()
        own = scores.gather(-1, codes[:, :, level, None]).squeeze(-1)
        score = score + own if normalised else score + own - scores.logsumexp(-1)
    score = score.masked_fill(~usable, -torch.inf)
    return F.cross_entropy(score, torch.zeros(len(score), dtype=torch.long, device=score.device))
