"""PowerSGD: matrices of low rank in the gradient's place."""

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
    """Send low-rank factors of each weight matrix, of (rows + columns)·rank entries (Vogels et al. 2019).

    One step of power iteration per training step (Vogels et al. 2019, "PowerSGD", Alg. 1 and 2).

    With error feedback and warm start. A parameter tensor of shape (a, …) is a matrix of a rows and b
    columns. Where rank·(a + b) is not less than a·b, as in all vectors, it is sent as it is. In ddp torch's
    hook does it, which sends all tensors as they are in the first two steps.

    Sends 8(v + rank·Σ(a + b))(P-1)/P bytes, v numbers as they are and Σ over the other matrices: less
    than the all-reduce at any P, and the only one here whose messages are added up on the way.
    """

    rank: int = Field(2, ge=1, le=1024, description="of the matrices that stand for the gradient")

    def build(self, comm: Communicator, shapes: Sequence[Size], rngs: RngFactory) -> Compressor:
        return PowerSgdCompressor(comm, shapes, self.rank, rngs.number("compression"))


class PowerSgdCompressor(Compressor):
    """Works on the compressed matrices one after the other, and sends all at once."""

    def __init__(self, comm: Communicator, shapes: Sequence[Size], rank: int, seed: int) -> None:
        """seed: the same on all ranks, which start from the same random matrices."""
        import torch

        super().__init__(comm)
        self._lengths = [shape.numel() for shape in shapes]
        # (rows, columns) of each tensor that is worth compressing, None of the others
        self._matrices = [_matrix(shape, rank) for shape in shapes]
        generator = torch.Generator().manual_seed(seed)
        self._q = [
            torch.randn(matrix[1], rank, generator=generator).to(comm.device)
            for matrix in self._matrices
            if matrix
        ]
        self.residual = torch.zeros(sum(self._lengths), device=comm.device)

    def _mean(self, gradient: Tensor) -> None:
        import torch

        gradient += self.residual
        self.residual.copy_(gradient)
        as_they_are, compressed, left_out = [], [], []
        tensors = zip(gradient.split(self._lengths), self.residual.split(self._lengths), strict=True)
        for (tensor, residual), matrix in zip(tensors, self._matrices, strict=True):
            if matrix is None:
                as_they_are.append(tensor)
                residual.zero_()
            else:
                compressed.append(tensor.view(matrix))
                left_out.append(residual.view(matrix))

        p = [matrix @ q for matrix, q in zip(compressed, self._q, strict=True)]
        self._mean_of([*as_they_are, *p])
        p = [torch.linalg.qr(each).Q for each in p]  # orthonormal columns, also where the gradient is 0
        self._q = [matrix.T @ each for matrix, each in zip(compressed, p, strict=True)]
        for matrix, each, q in zip(left_out, p, self._q, strict=True):
            matrix -= each @ q.T
        self._mean_of(self._q)
        for matrix, each, q in zip(compressed, p, self._q, strict=True):
            torch.mm(each, q.T, out=matrix)

    def _mean_of(self, tensors: Sequence[Tensor]) -> None:
        """Replace the tensors by their means over ranks, in one message."""
        import torch

        if tensors:
            flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
            self.comm.all_reduce(flat, "mean")
            for tensor, mean in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
                tensor.copy_(mean.view(tensor.shape))


def _matrix(shape: Size, rank: int) -> tuple[int, int] | None:
    """Rows and columns of a tensor as a matrix; None if `rank` does not make it smaller."""
    rows = shape[0] if len(shape) > 1 else 1
    columns = shape.numel() // rows
    return (rows, columns) if rank * (rows + columns) < rows * columns else None
