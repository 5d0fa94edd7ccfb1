"""From what a model thinks to what it reads: the last hidden state becomes the next input embedding.

A latent step feeds the model its own last hidden state. The two spaces differ when input and output embeddings differ,
so the state is mapped, and then given the mean length of an input embedding. Source: LatentMAS (arXiv 2511.20639); the
DiffMAS paper does not name its map.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

MapKind = Literal["identity", "ridge", "learned"]


def ridge_map(output: Tensor, inputs: Tensor, ridge: float) -> Tensor:
    """W_a = (W_outᵀ W_out + λ I)⁻¹ W_outᵀ W_in in fp32, so that h W_a ≈ what W_out would have to read.

    Args:
        output: output embeddings W_out [V, E].
        inputs: input embeddings W_in [V, E].
        ridge: λ; LatentMAS: 1e-5.

    Returns:
        W_a [E, E].
    """
    size = output.shape[1]
    gram = torch.zeros(size, size, device=output.device)
    cross = torch.zeros(size, inputs.shape[1], device=output.device)
    # In blocks of the vocabulary: fp32 copies of both whole matrices would not fit beside a large model.
    for out_block, in_block in zip(output.split(8192), inputs.split(8192), strict=True):
        gram += out_block.float().T @ out_block.float()
        cross += out_block.float().T @ in_block.float()
    solved: Tensor = torch.linalg.solve(gram + ridge * torch.eye(size, device=output.device), cross)
    return solved


class EmbeddingMap(nn.Module):
    """Hidden states [N, E] to input embeddings [N, E].

    identity: only the length is changed. ridge: h W_a. learned: h W with W trained, starting from W_a.
    """

    def __init__(self, kind: MapKind, weight: Tensor | None, norm: float) -> None:
        super().__init__()
        if kind not in get_args(MapKind):
            raise ValueError(f"embedding map: unknown kind {kind!r}; choose {', '.join(get_args(MapKind))}")
        self.kind = kind
        self.norm = norm
        self.weight = None if weight is None else nn.Parameter(weight, requires_grad=kind == "learned")

    @classmethod
    def fit(cls, model: Any, kind: MapKind = "ridge", ridge: float = 1e-5) -> EmbeddingMap:
        """The map of a model, from its own embeddings (an adapter on them is left out).

        Raises:
            ValueError: unknown kind, λ not positive, a model without an output embedding.
        """
        if not ridge > 0:  # also catches NaN
            raise ValueError(f"embedding map: λ must be positive, got {ridge}")
        head = model.get_output_embeddings()
        if head is None:
            raise ValueError("embedding map: the model has no output embeddings; a trace needs a language model")
        with torch.no_grad():
            inputs, output = model.get_input_embeddings().weight, head.weight
            weight = None if kind == "identity" else ridge_map(output, inputs, ridge)
            norm = float(torch.cat([part.float().norm(dim=-1) for part in inputs.split(8192)]).mean())
        return cls(kind, weight, norm)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map and rescale; computed in fp32, returned in the dtype of `hidden`."""
        mapped: Tensor = hidden.float()
        if self.weight is not None:
            mapped = mapped @ self.weight
        length = mapped.norm(dim=-1, keepdim=True).clamp_min(1e-8)
        rescaled: Tensor = mapped * (self.norm / length)
        return rescaled.to(hidden.dtype)
