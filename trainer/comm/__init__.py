"""What carries the bytes: the known transports, one Communicator each."""

from trainer.comm.base import Communicator
from trainer.registry import Registry

TRANSPORTS: Registry[Communicator] = Registry(
    "transport",
    {
        "memory": "trainer.comm.memory:MemoryCommunicator",
        "gloo": "trainer.comm.torch_dist:GlooCommunicator",
        "mpi": "trainer.comm.mpi:MpiCommunicator",
        "nccl": "trainer.comm.nccl:NcclCommunicator",
        "rpc": "trainer.comm.rpc:RpcCommunicator",
    },
)
