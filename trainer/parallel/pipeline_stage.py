"""Pipeline stage: the blocks of the model that one rank holds, and its exchange with its neighbours."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import nan
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from trainer.comm.base import Communicator
from trainer.comm.nonblocking import Request
from trainer.core.clock import Clock
from trainer.models.base import ParallelPair
from trainer.models.shapes import block_shapes, input_type
from trainer.models.split_points import balanced_split_points, stage_blocks
from trainer.parallel.schedules import Pass
from trainer.parallel.split_backward import SplitLayers, WeightPass
from trainer.training.loader import Batch
from trainer.training.profile import profile_blocks
from trainer.training.replica import Replica, join_stages
from trainer.training.task import Task
from trainer.training.trained import statistics, trained_parameters


def choose_split_points(
    task: Task,
    comm: Communicator,
    stages: int,
    split_points: Sequence[str] | None,
    micro_batches: int,
    pairs: Sequence[ParallelPair] = (),
) -> list[str]:
    """Return the given split points, or those that make the slowest stage the fastest.

    Every rank calls it before the clock starts. Rank 0 measures the blocks on one micro-batch, the first
    samples of the training split, and broadcasts its choice.

    pairs: the pairs of layers that must be in one stage.
    """
    names = task.spec.model.names
    if split_points is not None or stages == 1:
        return list(split_points or ())
    starts = torch.zeros(stages - 1, device=comm.device)
    if comm.rank == 0:
        train, samples = task.data.train, task.spec.batch_per_replica // micro_batches
        inputs, targets = (
            torch.from_numpy(train.inputs[:samples]),
            torch.from_numpy(train.targets[:samples]),
        )
        # CPU time, where it is that of the computation: other programs on the core lengthen wall time.
        clock = time.thread_time if task.spec.threads == 1 else time.perf_counter
        model = task.build_model(0)
        blocks = profile_blocks(
            [(name, model.get_submodule(name)) for name in names],
            inputs,
            targets,
            task.spec.loss,
            clock=clock,
        )
        seconds = [block.seconds for block in blocks]
        output_bytes = [block.output_bytes * samples for block in blocks]
        chosen = balanced_split_points(names, seconds, output_bytes, stages, pairs)
        starts.copy_(torch.tensor([names.index(name) for name in chosen]))
    comm.broadcast(starts, root=0)
    return [names[int(start)] for start in starts.tolist()]


class Chunk(NamedTuple):
    """Consecutive blocks of the model: one stage of the chain that the ranks form.

    Attributes:
        model: the blocks.
        input_shape: the shape of one sample of its input.
        is_first: it takes the samples. is_last: its output is that of the model.
    """

    model: nn.Sequential
    input_shape: tuple[int, ...]
    is_first: bool
    is_last: bool


class PipelineStage(Replica):
    """One rank of a pipeline: its stage, or several with schedule interleaved, and its optimizer.

    The loss of a step is the mean over the batch. The loss of a micro-batch is the sum over its samples,
    divided by the size of the batch or the sum of its weights, so the gradients of micro-batches of any
    size add up to the batch's.

    Attributes:
        stage_index: 0-based position of this rank in the pipeline.
        num_stages: number of ranks.
        chunks: how many stages each rank holds.
    """

    def __init__(
        self,
        task: Task,
        clock: Clock,
        comm: Communicator,
        split_points: Sequence[str],
        replica: int,
        *,
        splits_backward: bool = False,
        take: Callable[[str, nn.Module], nn.Module] = lambda _, block: block,
    ) -> None:
        """Build the blocks of this rank.

        Args:
            task: model, data and optimizer of the run.
            clock: the clock of this rank.
            comm: communicator of the ranks of one pipeline, in the order of their stages.
            split_points: first block of every stage but the first. Rank r of P holds stages r, r + P, ….
            replica: index of this copy of the model; it seeds the dropout generator.
            splits_backward: whether passes of kind "weight" follow those of kind "input".
            take: transforms each block, see `Task.build_model`. Its inputs and outputs keep their shapes.
        """
        names = task.spec.model.names
        self.stage_index, self.num_stages = comm.rank, comm.size
        own = stage_blocks(names, split_points)[self.stage_index :: self.num_stages]
        self.chunks = len(own)
        self._blocks = [name for blocks in own for name in blocks]
        model = task.build_model(replica, device=comm.device, only=self._blocks, take=take)
        super().__init__(model, task, clock)
        self._comm = comm
        self._is_first, self._is_last = self.stage_index == 0, self.stage_index == self.num_stages - 1
        shapes = block_shapes(task.spec.model, task.spec.dataset)
        self._chunks = [
            Chunk(
                nn.Sequential(OrderedDict((name, self.model.get_submodule(name)) for name in blocks)),
                shapes[names.index(blocks[0])],
                is_first=blocks[0] == names[0],
                is_last=blocks[-1] == names[-1],
            )
            for blocks in own
        ]
        self._input_shape = self._chunks[0].input_shape
        self._input_type = input_type(task.spec.dataset) if self._is_first else torch.get_default_dtype()
        self._output_shape = shapes[names.index(self._blocks[-1]) + 1]
        self._split_points, self._state_sizes = [*split_points], _state_sizes(task, split_points)
        if not self._is_last:
            self.loss = None
        self._in_flight: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # input and output
        self._split = SplitLayers(self.model) if splits_backward else None
        self._weight_passes: dict[int, list[WeightPass]] = {}  # of micro-batches
        self._sends: list[Request] = []

    @property
    def blocks(self) -> list[str]:
        return self._blocks

    def split_batch(self, batch: Batch, micro_batches: int, loss_weight: float = 1.0) -> int:
        """Start a step: clear the gradient and split the batch into micro-batches.

        Returns:
            The number of micro-batches. It is below `micro_batches` if the batch has fewer samples.
        """
        self.zero_grad()
        self._track_statistics(batch.samples > 0)
        count = min(micro_batches, len(batch.targets))
        self._inputs, self._micro_targets = (
            batch.inputs.tensor_split(count),
            batch.targets.tensor_split(count),
        )
        self._batch_size, self._loss_weight = len(batch.targets), loss_weight
        self._total = self._loss_function.total(batch.targets) or nan  # as torch's mean over no weight
        if self._is_last:
            self._losses: list[Tensor] = []
            self._step_outputs: list[Tensor] = []
        return count

    def receive_activations(self, of: Pass) -> Tensor:
        """Return the input of a stage: activations of the previous stage; samples on the first one."""
        chunk = self._chunks[of.chunk]
        if chunk.is_first:
            return self._inputs[of.micro_batch]
        return self._receive_input(chunk, len(self._micro_targets[of.micro_batch])).requires_grad_()

    def forward_micro_batch(self, of: Pass, x: Tensor) -> Tensor | None:
        """Return the output of a stage; None on the last one, which computes the loss instead."""
        chunk, targets = self._chunks[of.chunk], self._micro_targets[of.micro_batch]
        with self._clock.phase("compute"):
            self._weigh_balance(self._balance_weight(of))
            output = self._forward(chunk.model, x)
            if chunk.is_last:
                self._step_outputs.append(output.detach())
                output = self._loss_function.of(output, targets, "sum") / self._total
                self._losses.append(output.detach())
        self._in_flight[of.chunk, of.micro_batch] = x, output
        return None if chunk.is_last else output.detach()

    def send_activations(self, output: Tensor | None) -> None:
        """Start sending the output to the next stage. The last stage sends nothing."""
        if output is not None:
            self._send(output, self.stage_index + 1)

    def receive_gradient(self, of: Pass) -> Tensor | None:
        """Return the gradient of a stage's output from the next stage; None on the last one."""
        if self._chunks[of.chunk].is_last:
            return None
        _, output = self._in_flight[of.chunk, of.micro_batch]
        gradient = torch.empty(output.shape, device=self._comm.device)
        self._comm.recv(gradient.view(-1), (self.stage_index + 1) % self.num_stages)
        return gradient

    def backward_micro_batch(self, of: Pass, gradient: Tensor | None) -> Tensor | None:
        """Add to the parameters' gradient. Returns the gradient of the input; None on the first stage.

        A pass of kind "input" leaves the gradient of its layers' weights to `weights_of_micro_batch`.

        gradient: the gradient of the stage's output; None on the last stage, which starts from its loss.
        """
        x, output = self._in_flight.pop((of.chunk, of.micro_batch))
        with self._clock.phase("compute"):
            if output.requires_grad:  # samples need no gradient, and the first stage may have no parameters
                if gradient is None and self._loss_weight != 1.0:
                    output = output * self._loss_weight
                self._weigh_balance(self._balance_weight(of))  # for what runs again
                output.backward(gradient)
        if self._split:
            self._weight_passes[of.micro_batch] = self._split.take()
        return None if self._chunks[of.chunk].is_first else cast("Tensor", x.grad)

    def weights_of_micro_batch(self, of: Pass) -> None:
        """Add to the parameters' gradient what the pass of kind "input" of this micro-batch left."""
        passes = self._weight_passes.pop(of.micro_batch)
        if self._split:
            with self._clock.phase("compute"):
                self._split.run(passes)

    def send_gradient(self, gradient: Tensor | None) -> None:
        """Start sending the gradient of the input to the previous stage. The first stage sends nothing."""
        if gradient is not None:
            self._send(gradient, self.stage_index - 1)

    def finish_batch(self) -> None:
        """Flush the pipeline: wait for all sends, and compute the loss of the batch on the last stage."""
        self._wait_for_sends()
        self._restore_statistics()
        if self._is_last and self._loss_weight:  # with weight 0 the batch holds no sample of this replica
            with self._clock.phase("compute"):
                self.loss = torch.stack(self._losses).sum()
                self._outputs, self._targets = self._step_outputs, self._micro_targets

    def state(self) -> dict[str, Any]:
        return {**super().state(), "split_points": self._split_points}

    def squared_gradient_norm(self) -> Tensor:
        return self._of_whole_model(self._squares()).sum().reshape(1)

    def _of_whole_model(self, own: Tensor) -> Tensor:
        """A number for each parameter of the model, in its order, from those of each rank's parameters.

        Every rank calls it. A sum over it does not depend on where the model is cut, unlike a sum of the
        sums over stages.

        own: shape (…, parameters of this rank).
        """
        lengths = [stage.tensors for stage in self._state_sizes]
        held = range(self.stage_index, len(lengths), self.num_stages)
        whole = own.new_zeros(*own.shape[:-1], sum(lengths))
        parts = whole.split(lengths, dim=-1)
        for stage, part in zip(held, own.split([lengths[each] for each in held], dim=-1), strict=True):
            parts[stage].copy_(part)
        self._comm.all_reduce(whole.view(-1), "sum")  # each number and zeros
        return whole

    def _balance_weight(self, of: Pass) -> float:
        """The weight of a micro-batch in the loss of the step."""
        return self._loss_weight * len(self._micro_targets[of.micro_batch]) / self._batch_size

    def _receive_input(self, chunk: Chunk, samples: int) -> Tensor:
        buffer = torch.empty(samples, *chunk.input_shape, device=self._comm.device)
        self._comm.recv(buffer.view(-1), (self.stage_index - 1) % self.num_stages)
        return self.in_format(buffer)

    def _send(self, tensor: Tensor, to: int) -> None:
        self._sends.append(self._comm.isend(tensor.detach().reshape(-1), to % self.num_stages))

    def _wait_for_sends(self) -> None:
        for request in self._sends:
            request.wait()
        self._sends.clear()

    def predict(self, inputs: Tensor) -> Tensor | None:
        """The output of the whole model, on the last stage only. Every stage calls it."""
        output: Tensor | None = None
        for chunk in self._chunks:
            x = inputs if chunk.is_first else self._receive_input(chunk, len(inputs))
            output = chunk.model(x)
            self.send_activations(None if chunk.is_last else output)
        self._wait_for_sends()
        return output if self._is_last else None

    def full_weights(self) -> Tensor | None:
        """Weights of the whole model, on the first stage only. Every stage calls it."""
        own = self._stage_weights()
        if not self._is_first:
            self._comm.send(own, to=0)
            return None
        by_stage: dict[int, tuple[Tensor, Tensor]] = {}
        for rank in range(self.num_stages):
            stages = range(rank, len(self._state_sizes), self.num_stages)
            of_stages = [self._state_sizes[at] for at in stages]
            sizes = [*(each.parameters for each in of_stages), *(each.buffers for each in of_stages)]
            if rank == 0:
                state = own
            else:
                state = torch.empty(sum(sizes), device=self._comm.device)
                self._comm.recv(state, source=rank)
            parts = state.split(sizes)  # the parameters of its stages, then their statistics
            by_stage.update(
                zip(stages, zip(parts[: len(stages)], parts[len(stages) :], strict=True), strict=True)
            )
        return join_stages([by_stage[at] for at in sorted(by_stage)])

    def _stage_weights(self) -> Tensor:
        """`weights` of the whole stage."""
        return self.weights()


class StateSize(NamedTuple):
    """The numbers of elements in the two parts of a stage's weights, and of its trained tensors."""

    parameters: int
    buffers: int
    tensors: int


def _state_sizes(task: Task, split_points: Sequence[str]) -> list[StateSize]:
    """Return the size of every stage."""
    dataset, changing = task.spec.dataset, task.spec.model.statistics
    with torch.device("meta"):
        blocks = dict(task.spec.model.blocks(dataset.shape, dataset.outputs, torch.Generator("cpu")))
    stages = [
        nn.Sequential(OrderedDict((name, blocks[name]) for name in names))
        for names in stage_blocks(task.spec.model.names, split_points)
    ]
    return [
        StateSize(
            sum(each.numel() for each in trained_parameters(stage)),
            sum(each.numel() for each in statistics(stage, changing)),
            len(trained_parameters(stage)),
        )
        for stage in stages
    ]
