"""Buckets of gradients, each of which is averaged while the backward pass computes the next one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from math import inf
from typing import cast

import torch
from torch import Tensor, nn

from trainer.comm.nonblocking import Request, wait_all
from trainer.training.loader import Batch
from trainer.training.replica import Moment, Replica
from trainer.training.trained import trained_parameters

FIRST_MIB = 1.0  # of the first bucket: the sooner it starts, the more of it is hidden
MIB = 25.0  # of the others


class Buckets:
    """The gradients of a replica in buckets, as torch's DistributedDataParallel forms them.

    In the first step all gradients are one bucket. From then on, buckets have the order in which gradients
    were ready in that step. A bucket starts once its gradients are ready and those before it have started.
    Gradients of several types have buckets of their own.

    Source: Li et al. 2020, "PyTorch Distributed", Sec. 4.2.
    """

    def __init__(self, replica: Replica, average: Callable[[Tensor], Request], mib: float = MIB) -> None:
        """
        Args:
            average: starts to replace a flat tensor by its mean over the ranks.
            mib: the size from which on a bucket is full, in MiB; the first one has 1 MiB.
        """
        self._replica, self._average, self._mib = replica, average, mib
        self._parameters = trained_parameters(replica.model)
        self._buckets: Sequence[Sequence[int]] | None = None  # numbers of parameters; None: first step
        self._bucket_of: dict[int, int] = {}
        self._ready: list[int] = []  # in this step
        self._missing: Counter[int] = Counter()  # gradients by bucket
        self._started: list[Request] = []
        replica.listen(self._on_moment)

    def backward(self, batch: Batch, weight: float = 1.0) -> None:
        """Like `Replica.backward`, for the mean of the gradients over the ranks.

        Raises RuntimeError if other parameters get a gradient than in the first step.
        """
        self._ready.clear()
        self._missing = Counter(self._bucket_of.values())
        self._replica.backward(batch, weight)  # starts the buckets
        if self._buckets is None:
            for bucket in divided(self._parameters, sorted(self._ready), inf, inf):
                self._start(bucket)
            self._buckets = [*divided(self._parameters, self._ready, FIRST_MIB, self._mib)]
            self._bucket_of = {each: at for at, bucket in enumerate(self._buckets) for each in bucket}
        for number in self._bucket_of.keys() ^ {*self._ready}:
            own = self._parameters[number]
            name = next(name for name, each in self._replica.model.named_parameters() if each is own)
            raise RuntimeError(
                f"{name} gets a gradient in some steps only, and buckets need the same gradients in each; "
                "choose another strategy, such as all_reduce"
            )
        wait_all(self._started)
        self._started.clear()

    def _on_moment(self, moment: Moment) -> None:
        """A gradient is ready."""
        if not moment.last:
            return
        self._ready.append(moment.number)
        if self._buckets is not None:
            self._missing[self._bucket_of.get(moment.number, -1)] -= 1
            while (at := len(self._started)) < len(self._buckets) and not self._missing[at]:
                self._start(self._buckets[at])

    def _start(self, bucket: Iterable[int]) -> None:
        """Put gradients into one flat tensor, of which they become views, and start to average it."""
        parameters = [self._parameters[number] for number in bucket]
        flat = parameters[0].new_empty(sum(map(torch.numel, parameters)))
        for view, parameter in zip(views(flat, parameters), parameters, strict=True):
            view.copy_(cast("Tensor", parameter.grad))
            parameter.grad = view
        self._started.append(self._average(flat))


def divided(
    parameters: Sequence[Tensor], numbers: Iterable[int], first: float, other: float
) -> Iterator[list[int]]:
    """Divide parameters into buckets of one type each, in the order of `numbers`.

    first, other: the size from which on the first bucket of a type, and each other one, is full, in MiB.
    """
    filling: dict[torch.dtype, list[int]] = {}
    limits: dict[torch.dtype, float] = {}
    for number in numbers:
        kind = parameters[number].dtype
        bucket = filling.setdefault(kind, [])
        bucket.append(number)
        if sum(parameters[each].nbytes for each in bucket) >= limits.get(kind, first) * 2**20:
            limits[kind] = other
            yield filling.pop(kind)
    yield from filling.values()


def views(
    flat: Tensor, parameters: Sequence[nn.Parameter], lengths: Iterable[int] | None = None
) -> Iterator[Tensor]:
    """The values of each parameter in `flat`, with its memory format.

    lengths: of the part of `flat` that each takes; None: without padding.
    """
    starts = accumulate(lengths or map(torch.numel, parameters), initial=0)
    for each, start in zip(parameters, starts, strict=False):
        yield flat.as_strided(each.shape, each.stride(), start)
