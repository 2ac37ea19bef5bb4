"""RPC echo: no training. It tests remote calls: tensors go to every node and come back doubled."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.strategies.base import Strategy

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.context import NodeContext
    from trainer.events import EventWriter
    from trainer.result import TrainResult
    from trainer.task import Task


class WrongAnswer(Exception):
    """A node's answer is not what was asked for."""


class RpcEcho(Strategy):
    """Remote calls and nothing else (Damania et al. 2023, "PyTorch RPC").

    In every round rank 0, the master, sends `floats` numbers to all other nodes at once; each doubles
    them and sends them back, and the master checks every number. A round is a step.
    """

    transports: ClassVar[tuple[str, ...]] = ("rpc",)
    min_nodes: ClassVar[int] = 2
    uses_partition: ClassVar[bool] = False
    trains: ClassVar[bool] = False

    floats: int = Field(100_000, ge=1, le=100_000_000, description="float32 numbers per message")
    rounds: int = Field(10, ge=1, le=1_000_000, description="messages to each node")

    def train(self, context: NodeContext, task: Task, events: EventWriter) -> TrainResult:
        import torch

        from trainer.clock import Clock
        from trainer.comm.waits import book_waits
        from trainer.result import TrainResult

        torch.set_num_threads(task.spec.threads)
        clock = Clock()
        comm = context.connect(clock)
        events.write("train_start", parameters=0)
        comm.barrier()
        clock.start()
        if context.rank == 0:
            for number in range(self.rounds):
                question = torch.arange(self.floats, dtype=torch.float32).add_(number)
                with clock.phase("communicate"):
                    answers = ask_everyone(question, context)
                for node, answer in answers.items():
                    check(answer, question, node)
        comm.barrier()
        clock.stop()
        events.write("train_end")
        book_waits(comm)
        clock.book_no_core()
        # The library carries these bytes: each question to every other node, each answer back.
        messages = self.rounds * (context.size - 1 if context.rank == 0 else 1)
        return TrainResult(
            steps=self.rounds,
            samples=0,
            train_s=clock.train_s,
            work_cpu_s=clock.work_cpu_s,
            seconds=clock.seconds,
            bytes_sent=comm.traffic.bytes_sent + messages * self.floats * 4,
        )


def double(question: Tensor) -> Tensor:
    """Runs in the process of the node that is asked."""
    return question * 2


def ask_everyone(question: Tensor, context: NodeContext) -> dict[int, Tensor]:
    """The answer of every other node, by rank. Raises CommunicationError."""
    from torch.distributed import rpc

    from trainer.comm.rpc import node, reaching

    pending, answers = {}, {}
    for rank in range(1, context.size):
        with reaching(rank, "asking"):
            pending[rank] = rpc.rpc_async(node(rank), double, args=(question,), timeout=context.timeout_s)
    for rank, future in pending.items():
        with reaching(rank, "asking"):
            answers[rank] = future.wait()
    return answers


def check(answer: Tensor, question: Tensor, node: int) -> None:
    """Raises WrongAnswer unless `answer` is `question` doubled, number by number."""
    # Written another way than in `double`; doubling a float is exact.
    wrong = (answer != question + question).sum().item() if answer.shape == question.shape else "all"
    if wrong:
        raise WrongAnswer(f"node {node} answered {wrong} of {question.numel()} numbers wrongly")
