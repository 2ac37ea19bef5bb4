"""How much time the advice of `plan` loses, over several models. On request: it takes minutes.

Each case asks for the layouts of a model on two nodes. The three with the shortest predicted steps run on
real nodes, in local processes, and their traces are replayed on the link of the case. The regret is how
much longer the first of them took than the fastest of them.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from orchestrator.commands.plan import REAL, asked, named, planner
from orchestrator.commands.sweep import SelectedRuntime
from orchestrator.report import formats
from orchestrator.runtimes import RUNTIMES
from tests.bench.measuring import errors

NODES = 2
SECONDS = 60.0  # of execution
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
        print(f"plan: skipped, {NODES} nodes need a core each, and there are {cores:g}")
        return
    selected, regrets = SelectedRuntime("local", runtime, "of this benchmark"), []
    print(f"layouts on {NODES} nodes: seconds of a step, predicted and real, and the regret of the first")
    for model, batch_size, memory, link in CASES:
        question = asked(model, NODES, memory, link, None, None, batch_size, [], "gloo")
        with tempfile.TemporaryDirectory() as directory:
            made = planner(question, Path(directory), lambda line: None)
            made.execute(SECONDS)
            made.run(selected, REAL)
        found = made.plan
        regrets += [] if found.regret is None else [found.regret]
        counts = f"{len(found.fitting)} layouts fit, {len(found.too_large)} do not"
        print(
            f"  {model}, batches of {batch_size}, memory {memory or 'any'}, {link}: {counts}; "
            f"regret {formats.percent(found.regret)}"
        )
        for each in found.fitting[:REAL]:  # the advised one first
            times = [formats.seconds(each.step_s[0]), formats.seconds(each.real_step_s)]
            print(f"    {named(each.run):46} {times[0]:>9} {times[1]:>9}", flush=True)
    print(errors(f"regret over {len(regrets)} of {len(CASES)} cases", regrets))
