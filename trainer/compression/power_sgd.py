"""PowerSGD: low-rank approximations of the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from trainer.compression.base import Compression, Compressor

if TYPE_CHECKING:
    from torch import Size, Tensor

    from trainer.comm.base import Communicator
    from trainer.core.rng import RngFactory


class PowerSgd(Compression):
    """Send low-rank factors of each weight matrix: 8(v + rank·m)(P−1)/P bytes (Vogels et al. 2019).

    One step of power iteration per training step, with error feedback and warm start: for each gradient
    matrix M with its residual added,

        P ← mean over ranks of M Q
        P ← orthogonalise(P)
        Q ← mean over ranks of Mᵀ P
        gradient ← P Qᵀ

    The residual is a gradient, as in Alg. 2: after a change of the learning rate the rest of an earlier
    gradient is applied at the new rate, in ddp, too.

    Differences between two trainings grow. P depends on the gradients of all earlier steps, and rank 1 or 2
    leaves much of a gradient to the residual. In float64, 36 steps of an MLP (warm_up_epochs 3) multiply a
    change of the first weights by 4·10⁵ at rank 1, 4·10³ at rank 2, 150 at rank 4, and 0.8 without
    compression. Rounding is such a change: each step agrees with Alg. 1 and 2 to float32, but the final
    weights of another implementation can differ by 10⁻². To orthogonalise in float64 does not end this.

    A parameter tensor of shape (a, …) is a matrix of a rows and b columns. Tensors with rank·(a + b) ≥ a·b,
    such as all vectors, are sent uncompressed. In ddp torch's own hook is used, which sends all tensors
    uncompressed in the first two steps.

    v is the number of uncompressed entries, m the sum of a + b over the other matrices. For any P
    these are fewer bytes than those of the all-reduce. It is the only compression here whose messages can
    be summed on the way.

    Source: Vogels et al. 2019, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
    Optimization", Alg. 1 and 2.
    """

    rank: int = Field(2, ge=1, le=1024, description="of the matrices that stand for the gradient")

    def build(self, comm: Communicator, shapes: Sequence[Size], rngs: RngFactory) -> Compressor:
        return PowerSgdCompressor(comm, shapes, self.rank, rngs.torch_seed("compression"))


class PowerSgdCompressor(Compressor):
    """Approximates each gradient matrix M by P Qᵀ; one all-reduce sends all P, another all Q."""

    def __init__(self, comm: Communicator, shapes: Sequence[Size], rank: int, seed: int) -> None:
        """seed: Of the initial Q, the same on all ranks."""
        import torch

        super().__init__(comm)
        self._lengths = [shape.numel() for shape in shapes]
        # (rows, columns) of each compressed tensor; None for tensors sent uncompressed.
        self._matrices = [_matrix(shape, rank) for shape in shapes]
        generator = torch.Generator().manual_seed(seed)
        self._q = [
            torch.randn(matrix[1], rank, generator=generator).to(comm.device)
            for matrix in self._matrices
            if matrix
        ]
        self.residual = torch.zeros(sum(self._lengths), device=comm.device)

    def _mean(self, gradient: Tensor, lr: float) -> None:
        import torch

        gradient += self.residual
        self.residual.copy_(gradient)
        uncompressed, compressed, errors = [], [], []
        tensors = zip(gradient.split(self._lengths), self.residual.split(self._lengths), strict=True)
        for (tensor, residual), matrix in zip(tensors, self._matrices, strict=True):
            if matrix is None:
                uncompressed.append(tensor)
                residual.zero_()
            else:
                compressed.append(tensor.view(matrix))
                errors.append(residual.view(matrix))

        p = [matrix @ q for matrix, q in zip(compressed, self._q, strict=True)]
        self._mean_of([*uncompressed, *p])
        p = [torch.linalg.qr(each).Q for each in p]  # orthonormal columns, even for a gradient of 0
        self._q = [matrix.T @ each for matrix, each in zip(compressed, p, strict=True)]
        for matrix, each, q in zip(errors, p, self._q, strict=True):
            matrix -= each @ q.T
        self._mean_of(self._q)
        for matrix, each, q in zip(compressed, p, self._q, strict=True):
            torch.mm(each, q.T, out=matrix)

    def _mean_of(self, tensors: Sequence[Tensor]) -> None:
        """Replace the tensors by their means over ranks in one all-reduce."""
        import torch

        if tensors:
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
            self.comm.all_reduce(flat, "mean")
            for tensor, mean in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
                tensor.copy_(mean.view(tensor.shape))


def _matrix(shape: Size, rank: int) -> tuple[int, int] | None:
    """Rows and columns of a tensor as a matrix; None if P and Q would not be smaller than it."""
    rows = shape[0] if len(shape) > 1 else 1
    columns = shape.numel() // rows
    return (rows, columns) if rank * (rows + columns) < rows * columns else None
