"""The known strategies, one file each."""

from trainer.registry import ComponentRegistry
from trainer.strategies.base import Strategy

STRATEGIES: ComponentRegistry[Strategy] = ComponentRegistry(
    "strategy",
    {
        "serial": "trainer.strategies.serial:Serial",
        "one_shot": "trainer.strategies.one_shot:OneShot",
        "local_sgd": "trainer.strategies.local_sgd:LocalSGD",
        "diloco": "trainer.strategies.diloco:DiLoCo",
        "gossip": "trainer.strategies.gossip:Gossip",
        "all_reduce": "trainer.strategies.all_reduce:AllReduce",
        "all_gather": "trainer.strategies.all_gather:AllGather",
        "reduce_broadcast": "trainer.strategies.reduce_broadcast:ReduceBroadcast",
        "parameter_server": "trainer.strategies.parameter_server:ParameterServer",
        "async_parameter_server": "trainer.strategies.async_parameter_server:AsyncParameterServer",
        "ddp": "trainer.strategies.ddp:Ddp",
        "zero1": "trainer.strategies.zero1:Zero1",
        "fsdp": "trainer.strategies.fsdp:Fsdp",
        "pipeline": "trainer.strategies.pipeline:Pipeline",
        "pipeline_torch": "trainer.strategies.pipeline_torch:PipelineTorch",
        "hybrid": "trainer.strategies.hybrid:Hybrid",
        "tensor_parallel": "trainer.strategies.tensor_parallel:TensorParallel",
        "rpc_split": "trainer.strategies.rpc_split:RpcSplit",
        "hogwild": "trainer.strategies.hogwild:Hogwild",
        "placebo": "trainer.strategies.placebo:Placebo",
    },
)
