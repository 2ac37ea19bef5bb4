"""Checks of timelines against the Trace Event Format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMA = json.loads((Path(__file__).parent / "trace_event_format.schema.json").read_text())

Track = tuple[int, int]  # process and thread


def assert_trace_event_format(shown: dict[str, Any]) -> None:
    """Check a timeline against the format, and that viewers show every event on a track with a name."""
    Draft202012Validator(SCHEMA).validate(shown)
    events = shown["traceEvents"]
    named = {track_of(each) for each in events if each["name"] == "thread_name"}
    processes = {each["pid"] for each in events if each["name"] == "process_name"}
    tracks = tracks_of(shown)
    assert set(tracks) <= named
    assert {process for process, _ in named} == processes
    for track in tracks.values():
        until = 0
        for event in track:
            # Perfetto's nanoseconds. It drops events that begin before the previous one has ended.
            start, duration = int(event["ts"] * 1000), int(event["dur"] * 1000)
            assert start >= until
            until = start + duration


def tracks_of(shown: dict[str, Any]) -> dict[Track, list[dict[str, Any]]]:
    """The complete events by track, in order."""
    tracks: dict[Track, list[dict[str, Any]]] = {}
    for event in shown["traceEvents"]:
        if event["ph"] == "X":
            tracks.setdefault(track_of(event), []).append(event)
    return {track: sorted(events, key=lambda event: event["ts"]) for track, events in tracks.items()}


def track_of(event: dict[str, Any]) -> Track:
    """Process and thread of an event."""
    return event["pid"], event["tid"]
