"""Every registry of components: name -> "module:Class", loaded when the name is used. Imports no torch.

A new component is one file and one line here.
"""

from __future__ import annotations

from typing import Any

from trainer.aggregation.base import Aggregation
from trainer.attacks.base import Attack
from trainer.comm.base import Communicator
from trainer.compression.base import Compression
from trainer.core.registry import ComponentRegistry, Registry
from trainer.core.strategy import Strategy
from trainer.data.augmentations.base import Augmentation
from trainer.data.base import Dataset, Partitioner
from trainer.losses.base import Loss
from trainer.lr_schedules.base import LrSchedule
from trainer.models.base import Model
from trainer.optimizers.base import Optimizer

TRANSPORTS: Registry[Communicator] = Registry(
    "transport",
    {
        "memory": "trainer.comm.memory:MemoryCommunicator",
        "gloo": "trainer.comm.gloo:GlooCommunicator",
        "mpi": "trainer.comm.mpi:MpiCommunicator",
        "nccl": "trainer.comm.nccl:NcclCommunicator",
        "rpc": "trainer.comm.rpc:RpcCommunicator",
    },
)

DATASETS: ComponentRegistry[Dataset] = ComponentRegistry(
    "dataset",
    {
        "digits": "trainer.data.datasets.digits:Digits",
        "mnist": "trainer.data.datasets.mnist:Mnist",
        "fashion_mnist": "trainer.data.datasets.mnist:FashionMnist",
        "cifar10": "trainer.data.datasets.cifar10:Cifar10",
        "cifar100": "trainer.data.datasets.cifar10:Cifar100",
        "iris": "trainer.data.datasets.tables:Iris",
        "wine": "trainer.data.datasets.tables:Wine",
        "breast_cancer": "trainer.data.datasets.tables:BreastCancer",
        "synthetic": "trainer.data.datasets.synthetic:Synthetic",
        "pydoc_text": "trainer.data.datasets.text:PydocText",
        "tiny_shakespeare": "trainer.data.datasets.text:TinyShakespeare",
        "copy": "trainer.data.datasets.text:Copy",
        "induction": "trainer.data.datasets.text:Induction",
    },
    imported="trainer.components.dataset:ImportedDataset",
    paths={name: f"trainer.data.datasets.user_files:{name}" for name in ("npz", "npy", "image_folder")},
)

PARTITIONERS: ComponentRegistry[Partitioner] = ComponentRegistry(
    "partitioner",
    {
        "classes": "trainer.data.partitioners.classes:Classes",
        "contiguous": "trainer.data.partitioners.contiguous:Contiguous",
        "dirichlet": "trainer.data.partitioners.dirichlet:Dirichlet",
        "feature": "trainer.data.partitioners.feature:Feature",
        "prefix_shuffle": "trainer.data.partitioners.prefix_shuffle:PrefixShuffle",
        "quantity": "trainer.data.partitioners.quantity:Quantity",
        "random_partition": "trainer.data.partitioners.random_partition:RandomPartition",
        "random_sampling": "trainer.data.partitioners.random_sampling:RandomSampling",
        "reseeded_stride": "trainer.data.partitioners.reseeded_stride:ReseededStride",
        "shards": "trainer.data.partitioners.shards:Shards",
        "stratified": "trainer.data.partitioners.stratified:Stratified",
    },
    imported="trainer.components.partitioner:ImportedPartitioner",
)

AUGMENTATIONS: ComponentRegistry[Augmentation] = ComponentRegistry(
    "augmentation",
    {
        "none": "trainer.data.augmentations.none:NoneAugmentation",
        "standard": "trainer.data.augmentations.standard:StandardAugmentation",
    },
    imported="trainer.components.augmentation:ImportedAugmentation",
)

MODELS: ComponentRegistry[Model] = ComponentRegistry(
    "model",
    {
        "fedavg_cnn": "trainer.models.fedavg_cnn:FedAvgCnn",
        "gpt": "trainer.models.gpt:Gpt",
        "lenet": "trainer.models.lenet:LeNet",
        "lenet5": "trainer.models.lenet5:LeNet5",
        "mlp": "trainer.models.mlp:Mlp",
        "mnist_cnn": "trainer.models.mnist_cnn:MnistCnn",
        "vgg_small": "trainer.models.vgg_small:VggSmall",
        "vit_small": "trainer.models.vit_small:VitSmall",
        "wide_resnet": "trainer.models.wide_resnet:WideResNet",
    },
    imported="trainer.components.model:ImportedModel",
)

OPTIMIZERS: ComponentRegistry[Optimizer] = ComponentRegistry(
    "optimizer",
    {
        "sgd": "trainer.optimizers.sgd:Sgd",
        "momentum": "trainer.optimizers.momentum:Momentum",
        "adam": "trainer.optimizers.adam:Adam",
        "adamw": "trainer.optimizers.adamw:AdamW",
        "novograd": "trainer.optimizers.novograd:NovoGrad",
        "lars": "trainer.optimizers.lars:Lars",
        "lamb": "trainer.optimizers.lamb:Lamb",
        "lion": "trainer.optimizers.lion:Lion",
        "muon": "trainer.optimizers.muon:Muon",
        "textbook_sgd": "trainer.optimizers.textbook_sgd:TextbookSgd",
        "textbook_momentum": "trainer.optimizers.textbook_momentum:TextbookMomentum",
        "textbook_adam": "trainer.optimizers.textbook_adam:TextbookAdam",
    },
    imported="trainer.components.optimizer:ImportedOptimizer",
)

LR_SCHEDULES: ComponentRegistry[LrSchedule] = ComponentRegistry(
    "lr_schedule",
    {
        "constant": "trainer.lr_schedules.constant:Constant",
        "step": "trainer.lr_schedules.step:Step",
        "cosine": "trainer.lr_schedules.cosine:Cosine",
        "linear": "trainer.lr_schedules.linear:Linear",
        "inverse_sqrt": "trainer.lr_schedules.inverse_sqrt:InverseSqrt",
    },
    imported="trainer.components.lr_schedule:ImportedLrSchedule",
)

LOSSES: ComponentRegistry[Loss] = ComponentRegistry(
    "loss",
    {
        "nll": "trainer.losses.nll:Nll",
        "cross_entropy": "trainer.losses.cross_entropy:CrossEntropy",
        "binary_cross_entropy": "trainer.losses.binary_cross_entropy:BinaryCrossEntropy",
        "mse": "trainer.losses.mse:Mse",
    },
    imported="trainer.components.loss:ImportedLoss",
)

COMPRESSIONS: ComponentRegistry[Compression] = ComponentRegistry(
    "compression",
    {
        "none": "trainer.compression.none:NoneCompression",
        "fp16": "trainer.compression.fp16:Fp16",
        "int8": "trainer.compression.integers:Int8",
        "int4": "trainer.compression.integers:Int4",
        "top_k": "trainer.compression.top_k:TopK",
        "sign": "trainer.compression.sign:Sign",
        "power_sgd": "trainer.compression.power_sgd:PowerSgd",
    },
)

AGGREGATIONS: ComponentRegistry[Aggregation] = ComponentRegistry(
    "aggregation",
    {
        "mean": "trainer.aggregation.mean:MeanAggregation",
        "median": "trainer.aggregation.median:Median",
        "trimmed_mean": "trainer.aggregation.trimmed_mean:TrimmedMean",
        "krum": "trainer.aggregation.krum:Krum",
        "multi_krum": "trainer.aggregation.multi_krum:MultiKrum",
        "bulyan": "trainer.aggregation.bulyan:Bulyan",
        "geometric_median": "trainer.aggregation.geometric_median:GeometricMedian",
    },
)

ATTACKS: ComponentRegistry[Attack] = ComponentRegistry(
    "attack",
    {
        "sign_flip": "trainer.attacks.sign_flip:SignFlip",
        "noise": "trainer.attacks.noise:Noise",
        "label_flip": "trainer.attacks.label_flip:LabelFlip",
        "little_is_enough": "trainer.attacks.little_is_enough:LittleIsEnough",
    },
)

STRATEGIES: ComponentRegistry[Strategy] = ComponentRegistry(
    "strategy",
    {
        "serial": "trainer.strategies.serial:Serial",
        "one_shot": "trainer.strategies.one_shot:OneShot",
        "local_sgd": "trainer.strategies.local_sgd:LocalSGD",
        "hierarchical_sgd": "trainer.strategies.hierarchical_sgd:HierarchicalSGD",
        "elastic_averaging": "trainer.strategies.elastic_averaging:ElasticAveraging",
        "diloco": "trainer.strategies.diloco:DiLoCo",
        "streaming_diloco": "trainer.strategies.streaming_diloco:StreamingDiLoCo",
        "fedopt": "trainer.strategies.fedopt:FedOpt",
        "noloco": "trainer.strategies.noloco:NoLoCo",
        "fedprox": "trainer.strategies.fedprox:FedProx",
        "scaffold": "trainer.strategies.scaffold:Scaffold",
        "fednova": "trainer.strategies.fednova:FedNova",
        "gossip": "trainer.strategies.gossip:Gossip",
        "push_sum": "trainer.strategies.push_sum:PushSum",
        "sparta": "trainer.strategies.sparta:Sparta",
        "all_reduce": "trainer.strategies.all_reduce:AllReduce",
        "demo": "trainer.strategies.demo:DeMo",
        "delayed_all_reduce": "trainer.strategies.delayed_all_reduce:DelayedAllReduce",
        "all_gather": "trainer.strategies.all_gather:AllGather",
        "reduce_broadcast": "trainer.strategies.reduce_broadcast:ReduceBroadcast",
        "parameter_server": "trainer.strategies.parameter_server:ParameterServer",
        "async_parameter_server": "trainer.strategies.async_parameter_server:AsyncParameterServer",
        "async_diloco": "trainer.strategies.async_diloco:AsyncDiLoCo",
        "async_elastic_averaging": "trainer.strategies.async_elastic_averaging:AsyncElasticAveraging",
        "fedbuff": "trainer.strategies.fedbuff:FedBuff",
        "ddp": "trainer.strategies.ddp:Ddp",
        "zero1": "trainer.strategies.zero1:Zero1",
        "zero2": "trainer.strategies.zero2:Zero2",
        "zero3": "trainer.strategies.zero3:Zero3",
        "fsdp": "trainer.strategies.fsdp:Fsdp",
        "pipeline": "trainer.strategies.pipeline:Pipeline",
        "pipeline_torch": "trainer.strategies.pipeline_torch:PipelineTorch",
        "hybrid": "trainer.strategies.hybrid:Hybrid",
        "context_parallel": "trainer.strategies.context_parallel:ContextParallel",
        "tensor_parallel": "trainer.strategies.tensor_parallel:TensorParallel",
        "expert_parallel": "trainer.strategies.expert_parallel:ExpertParallel",
        "rpc_split": "trainer.strategies.rpc_split:RpcSplit",
        "hogwild": "trainer.strategies.hogwild:Hogwild",
        "fault_injection": "trainer.strategies.fault_injection:FaultInjection",
    },
    imported="trainer.components.strategy:ImportedStrategy",
)

# The component fields of a run.
REGISTRIES: dict[str, ComponentRegistry[Any]] = {
    "dataset": DATASETS,
    "partitioner": PARTITIONERS,
    "augmentation": AUGMENTATIONS,
    "model": MODELS,
    "loss": LOSSES,
    "optimizer": OPTIMIZERS,
    "lr_schedule": LR_SCHEDULES,
    "strategy": STRATEGIES,
}
