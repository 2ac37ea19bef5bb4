"""How much time the advice of `layout` loses, over several models. On request: it takes minutes.

Each case asks for the layouts of a model on two nodes. The three with the shortest predicted steps run on
real nodes, in local processes, and their traces are replayed on the link of the case. The regret is how
much longer the first of them took than the fastest of them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median

from orchestrator.commands.layout import REAL, advice, asked
from orchestrator.commands.sweep import SelectedRuntime
from orchestrator.layouts.advice import Advice
from orchestrator.report import formats
from orchestrator.report.model.labels import strategy_label
from orchestrator.runtimes import RUNTIMES

NODES = 2
# Model, batch size, memory of a node and link.
CASES = [
    ("gpt", 64, None, "1gbit/100us"),
    ("gpt", 64, "9mb", "1gbit/100us"),
    ("gpt", 64, None, "20mbit/5ms"),
    ("{name: gpt, experts: 4}", 32, None, "1gbit/100us"),
    ("lenet", 128, None, "100mbit/1ms"),
    ("{name: mlp, hidden: [1024, 1024]}", 128, None, "100mbit/1ms"),
]


def main() -> None:
    runtime = RUNTIMES.load("local")(False)
    if (cores := runtime.cores()) < NODES:
        print(f"layout: skipped, {NODES} nodes need a core each, and there are {cores:g}")
        return
    selected, regrets = SelectedRuntime("local", runtime, "of this benchmark"), []
    print(f"layouts on {NODES} nodes: seconds of a step, predicted and real, and the regret of the first")
    for model, batch_size, memory, link in CASES:
        question = asked(model, NODES, memory, link, None, None, batch_size, [], "gloo")
        with tempfile.TemporaryDirectory() as directory:
            found = advice(question, Path(directory), selected, REAL)
        regrets += [] if found.regret is None else [found.regret]
        print(
            f"  {model}, batches of {batch_size}, memory {memory or 'any'}, {link}: "
            f"{len(found.fitting)} layouts fit, {len(found.too_large)} do not; "
            f"regret {formats.percent(found.regret)}"
        )
        print(times(found), flush=True)
    print(
        f"regret over {len(regrets)} of {len(CASES)} cases: "
        f"median {median(regrets):.1%}, worst {max(regrets):.1%}"
    )


def times(found: Advice) -> str:
    """A line for each layout that ran for real, the advised one first."""
    rows = [(each, found.real_of(each)) for each in found.fitting[:REAL]]
    return "\n".join(
        f"    {strategy_label(each.run):46} {formats.seconds(each.step_s):>9} "
        f"{formats.seconds(real.step_s if real else None):>9}"
        for each, real in rows
    )
