"""The largest frequencies of a flat tensor: the messages of DeMo."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Size, Tensor


class Chunks:
    """The chunks of one tensor, and their orthonormal cosine transform (DCT-II).

    Attributes:
        size: the number of values of the tensor.
        sent: the number of coefficients in a message: the k largest of each chunk.
    """

    def __init__(self, shape: Size, chunk: int, top_k: int, device: str) -> None:
        rows, columns = (shape[0], prod(shape[1:])) if len(shape) > 1 else (1, prod(shape))
        h, w = largest_divisor(rows, chunk), largest_divisor(columns, chunk)
        self._shape, self._bases = (rows // h, h, columns // w, w), (cosines(h, device), cosines(w, device))
        self._k = min(top_k, h * w)
        self.size, self.sent = rows * columns, rows * columns // (h * w) * self._k

    def largest(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """The coefficients of a message and their places in their chunks, both of shape (sent,)."""
        found = torch.einsum("yaxb,ia,jb->yxij", tensor.view(self._shape), *self._bases).flatten(2)
        places = found.abs().topk(self._k, sorted=False).indices
        return found.gather(2, places).flatten(), places.flatten()

    def mean(self, values: Tensor, places: Tensor) -> Tensor:
        """The tensor of the mean coefficients, each over the messages that have it; 0 if none has it.

        Args:
            values, places: shape (messages, sent).
        """
        y, h, x, w = self._shape
        total = torch.zeros(y * x, h * w, device=values.device)
        senders = torch.zeros_like(total)
        for own, at in zip(values.split(1), places.split(1), strict=True):
            at = at.view(-1, self._k)
            total.scatter_add_(1, at, own.view(-1, self._k))
            senders.scatter_add_(1, at, torch.ones_like(own).view(-1, self._k))
        mean = (total / senders.clamp(min=1)).view(y, x, h, w)
        return torch.einsum("yxij,ia,jb->yaxb", mean, *self._bases).flatten()


class Frequencies:
    """Messages with the k largest coefficients of each chunk of a flat tensor.

    A message holds the values, then their places in their chunks (int16), two in the bits of each float32.
    """

    def __init__(self, shapes: Sequence[Size], chunk: int, top_k: int, device: str) -> None:
        """
        Args:
            shapes: of the tensors that are flattened.
            chunk: the longest side of a chunk; at most 128, for the places.
            top_k: k; of a smaller chunk, all.
        """
        self._chunks = [Chunks(shape, chunk, top_k, device) for shape in shapes]
        self._sent = [each.sent for each in self._chunks]

    def encode(self, flat: Tensor) -> Tensor:
        """A message, float32."""
        parts = flat.split([each.size for each in self._chunks])
        found = [each.largest(part) for each, part in zip(self._chunks, parts, strict=True)]
        places = torch.cat([at for _, at in found]).short()
        padded = torch.nn.functional.pad(places, (0, len(places) % 2))
        return torch.cat([*(values for values, _ in found), padded.view(torch.float32)])

    def decode(self, messages: Tensor) -> Tensor:
        """The flat tensor of the mean coefficients, each over the messages that have it.

        Args:
            messages: shape (messages, floats).
        """
        count = sum(self._sent)
        values, bits = messages[:, :count], messages[:, count:].contiguous()
        places = bits.view(torch.int16)[:, :count].long()
        of_tensors = values.split(self._sent, 1), places.split(self._sent, 1)
        parts = zip(self._chunks, *of_tensors, strict=True)
        return torch.cat([chunks.mean(own, at) for chunks, own, at in parts])


def largest_divisor(size: int, limit: int) -> int:
    """The largest divisor of a size that is at most a limit."""
    return max(divisor for divisor in range(1, min(size, limit) + 1) if size % divisor == 0)


def cosines(n: int, device: str) -> Tensor:
    """The matrix of the transform of n values, a row per frequency."""
    i = torch.arange(n, dtype=torch.float64)
    basis: Tensor = (torch.pi * (2 * i + 1) * i.unsqueeze(1) / (2 * n)).cos() * (2 / n) ** 0.5
    basis[0] /= 2**0.5
    return basis.float().to(device)
