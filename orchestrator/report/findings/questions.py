"""The questions under which a report shows its figures and findings."""

from __future__ import annotations

FURTHER = "further"

# Key and heading, in the order of a report.
QUESTIONS = {
    "asked": "What the sweep asks",
    "source": "How does it compare with its reference?",
    "links": "Which strategy suits which link?",
    "partitioners": "Which partitioner costs accuracy?",
    "choice": "How accurate is it, and after how much time?",
    "scale": "How does it scale?",
    "accuracy": "What does it cost in accuracy?",
    "time": "Where does the time go?",
    "waiting": "Which rank delays the others?",
    "data": "Which samples did each node see?",
    "model": "How is the model split?",
    FURTHER: "Further comparisons",
}
TOPICS = {
    "asked": ("Question of the sweep",),
    "source": ("Published", "Ablation", "Textbook optimizer"),
    "links": ("Links",),
    "scale": ("Speed", "More nodes", "Target accuracy"),
    "choice": ("Accuracy and time",),
    "accuracy": ("Accuracy", "Averaging", "Learning rate", "Not learned"),
    "time": ("Transport", "Exchange", "Cluster time", "Shared cores", "Drift"),
    "waiting": ("Stragglers", "Slow node"),
    "partitioners": ("Partitioning",),
    "data": ("Verification",),
    "model": ("Memory", "Bubble", "Split point"),
}
FIGURES = {
    "source": ("textbook_optimizers",),
    "links": ("links",),
    "scale": ("time", "speedup", "cpu_time_speedup", "time_to_target"),
    "choice": ("choice", "accuracy_over_time"),
    "accuracy": ("strategies", "accuracy", "staleness"),
    "time": ("phases", "timelines", "exchange"),
    "waiting": ("stragglers",),
    "partitioners": ("partitioners",),
    "data": ("labels",),
    "model": ("memory", "bubbles", "split_points"),
}


def question_of_topic(topic: str) -> str:
    """The key of the question that findings on this topic answer."""
    return _key_of(topic, TOPICS)


def question_of_figure(name: str) -> str:
    """The key of the question that a figure answers."""
    return _key_of(name, FIGURES)


def _key_of(name: str, answers: dict[str, tuple[str, ...]]) -> str:
    return next((key for key, names in answers.items() if name in names), FURTHER)
