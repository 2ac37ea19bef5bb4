"""Mistakes in what divided models refuse: limits by one, errors that do not name what is allowed."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tests.unit.training import SMALL
from trainer.spec.run_spec import RunSpec

IMAGES = {**SMALL, "model": "lenet", "batch_size": 32}
MLP = {"model": {"name": "mlp", "hidden": [9, 8, 7]}}  # pairs: fc1 and fc2, fc3 and output
GPT = {"name": "gpt", "layers": 2, "width": 16, "heads": 4}
TOKENS = {"name": "induction", "length": 11, "tokens": 15, "samples": 107, "test_samples": 20}
ON_TOKENS = {**SMALL, "model": GPT, "dataset": TOKENS, "batch_size": 9}
TIED, EXPERTS = ({**ON_TOKENS, "model": {**GPT, **each}} for each in ({"tied": True}, {"experts": 5}))
SYNCHRONISED = {"model": {"name": "wide_resnet", "norm": "sync_batch"}}
EIGHT = {"data": 2, "pipeline": 2, "tensor": 2}
INTERLEAVED = {"schedule": "interleaved"}
ZERO_BUBBLE = {"schedule": "zero_bubble", "micro_batches": 2}
SIX = {"mesh": {"pipeline": 6, "tensor": 2}}
CUT = {"mesh": {"pipeline": 2, "tensor": 2}, "split_points": ["relu1"]}
TENSOR = {"mesh": {"tensor": 2}}

# Strategy, its parameters, nodes, other fields, and what the error says.
REFUSED: list[tuple[str, dict[str, Any], int, dict[str, Any], list[str]]] = [
    ("pipeline", {}, 14, {}, ["lenet", "14 nodes", "13 blocks: conv1, pool1"]),
    ("pipeline", {"split_points": ["fc9"]}, 2, {}, ["'fc9'", "allowed: pool1, relu1"]),
    ("pipeline", {"split_points": ["flatten"]}, 3, {}, ["stages: 3", "split points: 1", "pool1, relu1"]),
    ("pipeline", {"micro_batches": 33}, 2, {}, ["33", "allowed: 1 to 32"]),
    ("pipeline", {}, 2, SYNCHRONISED, ["pipeline", "sync_batch", "allowed: all_reduce"]),
    ("pipeline", {"chunks": 2}, 2, {}, ["chunks: 2", "interleaved", "1f1b"]),
    ("pipeline", INTERLEAVED, 1, {}, ["two stages", "allowed: schedule 1f1b"]),
    ("pipeline", {**INTERLEAVED, "micro_batches": 5}, 2, {"batch_size": 9}, ["(2), not 5", "2, 4, 6, …"]),
    ("pipeline", {**INTERLEAVED, "micro_batches": 5}, 3, {"batch_size": 6}, ["allowed: 3, 6, …, or"]),
    ("pipeline", {**INTERLEAVED, "split_points": ["fc1"]}, 2, {}, ["stages: 4", "needed: 3"]),
    ("pipeline", ZERO_BUBBLE, 3, {"batch_size": 3}, ["(3), not 2", "3 to 3 micro-batches"]),
    ("pipeline_torch", {"micro_batches": 3}, 4, {}, ["1f1b", "4 to 32 micro-batches, or schedule gpipe"]),
    ("rpc_split", {}, 1, {}, ["1 node", "2 or more"]),
    ("rpc_split", {}, 15, {}, ["14 stages", "13 blocks"]),
    ("rpc_split", {}, 3, {"transport": "gloo"}, ["gloo", "allowed: rpc"]),
    ("hybrid", {"mesh": EIGHT}, 4, {}, ["{data: 2, pipeline: 2, tensor: 2} has 8 ranks", "4 nodes"]),
    ("hybrid", {"mesh": {"data": 2}}, 6, MLP, ["allowed: {data: 6}, {data: 3, pipeline: 2}"]),
    ("hybrid", {}, 5, {}, ["mesh {data: 2, pipeline: 2}", "{data: 5}, {pipeline: 5}, {tensor: 5}"]),
    ("hybrid", {"mesh": {"tensor": 5}}, 5, ON_TOKENS, ["block1.attention.qkv", "1 to 4 ranks"]),
    ("hybrid", SIX, 12, MLP, ["6 stages", "5", "points: fc1, relu2, fc3, log"]),
    ("hybrid", CUT, 4, MLP, ["split point relu1", "pair fc1, fc2", "allowed: fc1, relu2, fc3, log"]),
    ("hybrid", {"mesh": {"pipeline": 2}}, 2, TIED, ["tied: true"]),
    ("hybrid", TENSOR, 2, {"precision": "bf16"}, ["exchange activations", "float32"]),
    ("hybrid", TENSOR, 2, {"recompute": "full"}, ["allowed: none, selective"]),
    ("tensor_parallel", {}, 11, {}, ["conv1", "conv2", "1 to 10"]),
    ("tensor_parallel", {}, 4, {"model": {"name": "mlp", "hidden": [64, 8, 3]}}, ["fc3", "1 to 3"]),
    ("context_parallel", {}, 5, ON_TOKENS, ["12", "5"]),
    ("context_parallel", {"attention": "ulysses"}, 3, ON_TOKENS, ["heads", "4", "3"]),
    ("context_parallel", {}, 2, {"model": "vit_small"}, ["tokens"]),
    ("expert_parallel", {}, 6, EXPERTS, ["1 to 5"]),
    ("expert_parallel", {}, 2, ON_TOKENS, ["gpt with experts"]),
    ("all_reduce", {}, 3, {"batch_per": "run"}, ["32", "3"]),
]
# At the limits of the errors above.
ALLOWED: list[tuple[str, dict[str, Any], int, dict[str, Any]]] = [
    ("pipeline", {}, 13, {}),
    ("pipeline", {"micro_batches": 32}, 2, {}),
    ("pipeline", {"schedule": "zero_bubble", "micro_batches": 3}, 3, {}),
    ("pipeline", {**INTERLEAVED, "micro_batches": 6}, 3, {"batch_size": 6}),
    ("pipeline_torch", {"micro_batches": 4}, 4, {}),
    ("rpc_split", {}, 14, {}),
    ("hybrid", {"mesh": {"tensor": 4}}, 4, ON_TOKENS),
    ("hybrid", TENSOR, 2, TIED),
    ("tensor_parallel", {}, 10, {}),
    ("context_parallel", {}, 4, ON_TOKENS),
    ("expert_parallel", {}, 5, EXPERTS),
]


def spec_of(name: str, parameters: dict[str, Any], nodes: int, fields: dict[str, Any]) -> RunSpec:
    run = {**IMAGES, **fields, "strategy": {"name": name, **parameters}, "nodes": nodes}
    return RunSpec.model_validate(run)


def test_what_ranks_cannot_divide_is_refused() -> None:
    for *run, facts in REFUSED:
        with pytest.raises(ValidationError) as caught:
            spec_of(*run)
        (error,) = caught.value.errors()
        assert [fact for fact in facts if fact not in error["msg"]] == [], error["msg"]


def test_what_is_at_the_limit_is_allowed() -> None:
    for case in ALLOWED:
        assert spec_of(*case).world_size == case[2]
