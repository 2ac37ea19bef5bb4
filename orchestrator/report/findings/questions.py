"""The questions that a report answers, and to which of them a figure and a finding belong."""

from __future__ import annotations

QUESTIONS = {
    "scale": "How does it scale?",
    "accuracy": "What does it cost in accuracy?",
    "time": "Where does the time go?",
    "waiting": "Which rank delays the others?",
    "data": "Which samples did each node see?",
    "model": "How is the model split?",
    "further": "Further comparisons",
}
_FIGURES = {
    "time": "scale",
    "speedup": "scale",
    "cpu_time_speedup": "scale",
    "strategies": "scale",
    "accuracy": "accuracy",
    "accuracy_over_time": "accuracy",
    "partitioners": "accuracy",
    "time_to_target": "accuracy",
    "phases": "time",
    "exchange": "time",
    "timelines": "time",
    "stragglers": "waiting",
    "labels": "data",
    "memory": "model",
    "bubbles": "model",
    "split_points": "model",
}
_TOPICS = {
    "Speed": "scale",
    "More nodes": "scale",
    "Accuracy and time": "scale",
    "Accuracy": "accuracy",
    "Stragglers": "waiting",
    "Partitioning": "data",
    "Exchange": "time",
    "Memory": "model",
}


def question_of_figure(name: str) -> str:
    return _FIGURES.get(name, "further")


def question_of_topic(topic: str) -> str:
    return _TOPICS.get(topic, "further")
