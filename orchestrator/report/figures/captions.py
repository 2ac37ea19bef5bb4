"""What a reader must know to read each figure, in the words of the page."""

from __future__ import annotations

CAPTIONS = {
    "strategies": "The most accurate first, means over seeds; pale: from the lowest to the highest seed. "
    "Grey line: serial. Colours are those of all figures; below, where each algorithm is written.",
    "exchange": "Of all models of the sweep that are otherwise trained alike. Seconds of communicating and "
    "waiting, per step of the rank that took most, mean over ranks.",
    "by_hand": "Loss on the test split after each epoch, a line for the library's optimiser, crosses for "
    "the one written out by hand, both from the same initial weights and samples; a colour is a seed.",
    "partitioners": "Means over seeds. The darker, the more is lost against the first line, strategy by "
    "strategy.",
    "time_to_target": "Training time to the end of the epoch in which the target accuracy was reached, "
    "evaluation apart: means over the seeds that reached it; pale: from the lowest to the highest of them. "
    "Where it had to hold for several epochs in a row, the first of them counts.",
    "time": "Grey line: serial. Shaded: nodes share cores, so more of them cannot be faster.",
    "speedup": "Against the serial run of the same work and seed. Shaded: nodes share cores.",
    "work_speedup": "By the CPU time of the busiest node: the speedup if every node had a core of its own "
    "and communication cost nothing. Stages of a pipeline wait for each other all the same.",
    "accuracy": "Of the final weights, on the whole test split.",
    "staleness": "Updates that other workers made between a worker's pull of the weights and its push of a "
    "gradient, mean over all gradients. The server is among the nodes.",
    "accuracy_over_time": "A point per epoch that all seeds trained. Evaluation is not in the time.",
    "phases": "Every second of training belongs to one phase; waiting is for slower nodes. "
    "Evaluation is outside of the training time. "
    "A serial bar three times as long as all others is left out.",
    "waits": "Share of its training time that each rank (row) waited for each other (column), mean over "
    "seeds, as far as their meetings tell: in a collective for the last to come, in a receive for the "
    "sender. At most six runs, those with most waiting; colours compare between them.",
    "memory": "Of the rank that keeps most, mean over seeds: weights, gradient and optimizer state from "
    "step to step, activations from the forward to the backward pass. Samples, the interpreter and torch "
    "are not in it.",
    "bubbles": "Shares of training time in which stages stand idle and wait for each other, mean over "
    "ranks; pale: from the lowest to the highest seed. The formula takes all stages for equally long and "
    "sending for free; nodes that share cores wait longer.",
    "split_points": "The model in two stages, split before each of these blocks, all else equal; mean over "
    "seeds; band: from the lowest to the highest seed. Percent: the balance, mean by longest time of work. "
    "Where several pipelines were cut like this, the one with most cuts.",
    "labels": "As the nodes were really fed, in the run of the lowest seed for each partitioner and number "
    "of nodes; colours compare within a row, an empty cell is no sample. JS divergence (bits) and EMD, the "
    "earth mover's distance (0 to 2), are of a node's labels from the whole set's: mean, and largest of "
    "any node.",
}
