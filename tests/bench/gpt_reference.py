"""The losses of `gpt` beside those of Hugging Face's models. On request: it installs transformers.

From the same weights, on the same windows, with the same optimizer: GPT-2, and LLaMA with biases. The
sizes are those of nanoGPT on a CPU (train_shakespeare_char.py, as its README calls it).
"""

from __future__ import annotations

import subprocess
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import torch

from tests.bench.flower import installed
from trainer.core.clock import Clock
from trainer.spec.run_spec import RunSpec
from trainer.training.loader import BatchLoader
from trainer.training.replica import Replica
from trainer.training.task import Task

PACKAGE = "transformers==5.24.0"
STEPS = 100
SIZES: dict[str, Any] = {"name": "gpt", "layers": 4, "width": 128, "heads": 4}
MODELS = {"gpt2": {"tied": True}, "llama": {"positions": "rope", "norm": "rms", "activation": "swiglu"}}
SCRIPT = """
import sys
import torch

sys.modules["torchvision"] = None  # transformers would import it, and it may not fit torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

torch.set_num_threads(1)
kind, w, windows, ours = torch.load(sys.argv[1])
torch.set_default_dtype(ours.dtype)
vocabulary, width = w["embedding.token.weight"].shape
sizes = dict(vocab_size=vocabulary, bos_token_id=0, eos_token_id=0, attn_implementation="eager")
if kind == "gpt2":
    model = GPT2LMHeadModel(GPT2Config(
        **sizes, n_embd=width, n_layer=4, n_head=4, n_positions=64, activation_function="gelu",
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    top = {"transformer.wte": "embedding.token", "transformer.wpe": "embedding.position",
           "transformer.ln_f": "head.norm", "lm_head": "embedding.token"}
    layer = {"ln_1": "norm1", "ln_2": "norm2", "attn.c_proj": "attention.out", "mlp.c_fc": "mlp.up",
             "mlp.c_proj": "mlp.down"}
else:
    model = LlamaForCausalLM(LlamaConfig(
        **sizes, hidden_size=width, num_hidden_layers=4, num_attention_heads=4, intermediate_size=4 * width,
        rms_norm_eps=1e-5, attention_bias=True, mlp_bias=True, tie_word_embeddings=False))
    top = {"model.embed_tokens": "embedding.token", "model.norm": "head.norm", "lm_head": "head.scores"}
    layer = {"input_layernorm": "norm1", "post_attention_layernorm": "norm2",
             "self_attn.o_proj": "attention.out", "mlp.down_proj": "mlp.down"}
prefix, kinds = ("transformer.h" if kind == "gpt2" else "model.layers"), ("weight", "bias")
names = top | {f"{prefix}.{n}.{to}": f"block{n + 1}.{own}" for n in range(4) for to, own in layer.items()}
state = {f"{to}.{of}": w[f"{own}.{of}"] for to, own in names.items() for of in kinds if f"{own}.{of}" in w}
for block, at, of in ((f"block{n + 1}", f"{prefix}.{n}", of) for n in range(4) for of in kinds):
    by_head = w[f"{block}.attention.qkv.{of}"].unflatten(0, (4, 3, -1))
    qkv = [each.flatten(0, 1) for each in by_head.unbind(1)]
    if kind == "gpt2":
        state[f"{at}.attn.c_attn.{of}"] = torch.cat(qkv)
    else:
        state |= {f"{at}.self_attn.{x}_proj.{of}": each for x, each in zip("qkv", qkv)}
        state[f"{at}.mlp.gate_proj.{of}"] = w[f"{block}.mlp.up.{of}"][0::2]
        state[f"{at}.mlp.up_proj.{of}"] = w[f"{block}.mlp.up.{of}"][1::2]
# GPT-2's layers store weights transposed.
model.load_state_dict({n: v.T if n.startswith("transformer.h") and v.dim() == 2 else v
                       for n, v in state.items()})
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)
losses = []
for window in windows:
    optimizer.zero_grad()
    scores = model(window[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), window[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
apart = (torch.tensor(losses) - ours).abs()
print(f"{kind}, {ours.dtype}: loss {ours[0]:.4f} to {ours[-1]:.4f} in {len(ours)} steps; "
      f"largest difference {apart.max():.1e}, in the first step {apart[0]:.1e}")
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        python = installed(directory, PACKAGE)
        (directory / "script.py").write_text(SCRIPT)
        for kind, dtype in product(MODELS, (torch.float64, torch.float32)):
            torch.save(trained(kind, dtype), directory / "ours.pt")
            subprocess.run([python, directory / "script.py", directory / "ours.pt"], check=True)


def trained(kind: str, dtype: torch.dtype) -> tuple[str, dict[str, torch.Tensor], list[torch.Tensor], Any]:
    """The first weights, the windows and the losses of our model."""
    torch.set_num_threads(1)
    torch.set_default_dtype(dtype)
    optimizer = {"name": "adamw", "beta2": 0.99, "weight_decay": 0.1}
    fields = {"strategy": "serial", "dataset": "pydoc_text", "batch_size": 12, "lr": 1e-3}
    run = RunSpec.model_validate({**fields, "optimizer": optimizer, "model": {**SIZES, **MODELS[kind]}})
    task = Task(run, Path())
    replica = Replica(task.build_model(0), task, Clock())
    first = {name: each.detach().clone() for name, each in replica.model.named_parameters()}
    loader = BatchLoader(task.data.train, run, task.rngs, 0, 1)
    windows, losses = [], []
    for batch, _ in loader.batches(1):
        replica.backward(batch)
        replica.step()
        windows.append(torch.cat([batch.inputs, batch.targets[:, -1:]], dim=1))
        losses.append(replica.loss.item() if replica.loss is not None else float("nan"))
        if len(losses) == STEPS:
            break
    return kind, first, windows, torch.tensor(losses)
