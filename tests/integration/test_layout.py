"""The command `layout`, from a model to advice that was tried for real."""

from __future__ import annotations

import json

import pytest

from tests.support.command_line import run_cli

pytestmark = pytest.mark.nightly

MODEL = "{name: gpt, layers: 2, width: 16, heads: 2}"


def test_layouts_are_predicted_and_the_fastest_run_for_real() -> None:
    options = ("--nodes", "2", "--batch-size", "16", "--runtime", "local", "--real", "2", "--json")
    done = run_cli(
        "layout", MODEL, *options, "--memory", "1mb", "--dataset", "{name: induction, length: 15}"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    fitting = [each for each in found["layouts"] if each["fits"]]
    times = [each["step_s"] for each in fitting]
    assert times == sorted(times)
    real_s = [each["real_step_s"] for each in fitting[:2]]
    assert found["regret"] == real_s[0] / min(real_s) - 1
    by_name = {each["strategy"]["name"]: each for each in found["layouts"]}
    assert {"all_reduce", "zero2", "tensor_parallel", "context_parallel", "pipeline"} <= by_name.keys()
    # Half of the optimizer state and of the gradient; and no copy of the model.
    assert by_name["zero2"]["memory_bytes"] < by_name["all_reduce"]["memory_bytes"]
    assert all(each["bytes_per_step"] > 0 and each["communication"] > 0 for each in fitting)
    assert set(found["left_out"]) >= {"fsdp", "zero1", "expert_parallel"}
