"""Mistakes in imports of components: paths, parameters, files, keys, and what must fit together."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from jsonschema import Draft202012Validator

from orchestrator.errors import InputError
from orchestrator.sweeps import imports as module
from orchestrator.sweeps import staged_code
from orchestrator.sweeps.imports import ComponentError, Imports, from_here
from orchestrator.sweeps.load import load_sweep
from trainer.core.rng import RngFactory
from trainer.data.base import DataError, Split
from trainer.spec.run_spec import RunSpec
from trainer.training.loader import PartitionedSplit
from trainer.training.partition import partition
from trainer.user_components import source

FILE = Path(__file__).parents[2] / "users_components.py"
Load = Callable[..., RunSpec]

BASE = {"dataset": "./mine.py:good", "model": "./mine.py:Net", "strategy": "ddp", "nodes": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("users")
    shutil.copyfile(FILE, path / "mine.py")
    files = {
        "broken.py": "import os\n\ndef f(:\n",
        "fails.py": "\nraise RuntimeError('at import')\n",
        "leaves.py": "import sys\nsys.exit(3)\n",
        "lacks.py": "import not_installed_anywhere\n",
        "lazy.py": "def net(shape, classes):\n    import layers\n    return layers.Net(shape, classes)\n"
        "def loss(output, target):\n    from package import inner\n    return inner.of(output, target)\n",
        "layers.py": FILE.read_text(),
        "package/__init__.py": "",
        "package/inner.py": "from torch.nn.functional import nll_loss as of\n",
        "package/relative.py": "from .inner import of\n",
        "table.py": "import numpy as np\nfrom pathlib import Path\n"
        "def rows():\n    data = np.loadtxt(Path(__file__).parent / 'table.csv', delimiter=',')\n"
        "    return data[:, :4], data[:, 4].astype(int)\n",
        "one/net.py": "import common\nfrom mine import Net\n",
        "one/common.py": "WIDTH = 1\n",
        "two/net.py": "import common\ndef mean(output, target):\n    return -output.mean()\n",
        "two/common.py": "WIDTH = 2\n",
        "with space ü/mine.py": FILE.read_text(),
        "co:lon/mine.py": FILE.read_text(),
    }
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    shutil.copyfile(FILE, path / "one" / "mine.py")
    rng = np.random.default_rng(0)
    table = np.column_stack([rng.standard_normal((40, 4)), rng.integers(2, size=40)])
    np.savetxt(path / "table.csv", table, delimiter=",")
    for name in ("pipe.npz", "pipe.py", "pipes/one/a.png"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path / name)  # whose reader would wait for a writer
    return path


@pytest.fixture(scope="module")
def imports(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Imports]:
    """One process tries the components of all tests."""
    found = Imports(folder, tmp_path_factory.mktemp("data"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def load(imports: Imports) -> Load:
    def loaded(**fields: Any) -> RunSpec:
        text = yaml.safe_dump({"name": "s", "blocks": [{"base": {**BASE, **fields}}]})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(imports, "close", lambda: None)  # a sweep closes it once it is loaded
            return load_sweep(Path("s.yml"), text=text, imports=lambda _: imports).runs[0]

    return loaded


def line_of(mark: str) -> str:
    """`mine.py:12`: where the file has `# here: mark`."""
    lines = FILE.read_text().splitlines()
    return f"mine.py:{next(at for at, line in enumerate(lines, 1) if line.endswith(f'# here: {mark}'))}"


def named(name: str, **parameters: Any) -> dict[str, Any]:
    return {"name": f"./mine.py:{name}", **parameters}


# Field, its value, the rest of the key path, and parts of the message.
REFUSED: list[tuple[str, Any, str, list[str]]] = [
    ("dataset", "./mine.py:Raises", "", [line_of("data"), "ValueError: no item"]),
    ("dataset", "./mine.py:beside", "", [line_of("relative path"), "table.npy", "Path(__file__)"]),
    ("dataset", named("good", sample=3), ".sample", ["'samples'", "allowed: samples, classes"]),
    ("dataset", named("good", samples="3"), ".samples", ["'3'", "integer"]),
    ("dataset", named("good", scale=float("nan")), ".scale", ["nan"]),
    ("dataset", {"name": "npz"}, ".path", ["missing"]),
    ("dataset", {"name": "npz", "path": "gone.npz"}, "", ["gone.npz", "data directory"]),
    ("dataset", {"name": "npz", "path": "pipe.npz"}, "", ["pipe.npz", "is a pipe"]),
    ("dataset", {"name": "npy", "path": "pipe.npz", "targets": "pipe.npz"}, "", ["pipe.npz", "is a pipe"]),
    ("dataset", {"name": "image_folder", "path": "pipes"}, "", ["a.png", "is a pipe"]),
    ("dataset", {"name": "image_folder", "path": "pipes", "size": 0}, ".size", ["0", "greater than"]),
    ("model", "./pipe.py:Net", "", ["pipe.py", "no regular file"]),
    ("model", "./pipe.py", "", ["names a file", "write ./pipe.py:NAME"]),
    ("model", "./mine.py:Scores", "", ["nn.LogSoftmax", "cross_entropy"]),
    ("model", "./mine.py:Failing", "", [line_of("forward"), "RuntimeError: no output"]),
    ("model", "./mine.py:exits", "", ["exited with code 3"]),
    ("model", "./mine.py:crashes", "", ["SIGSEGV"]),
    ("model", "./mine.py:leaves", "", [line_of("exit"), "SystemExit: bye"]),
    ("model", "./mine.py:number", "", ["int", "class or a function"]),
    ("model", named("typed", names=[1]), ".names[0]", ["1", "string"]),
    ("model", named("typed", shape=[3]), ".shape", ["allowed: names, share"]),
    ("model", "./mine.py:nets", "", ["no nets", "it defines ", " Net, ", " more"]),
    ("model", named("Wide", widths=[9, "8"]), ".widths[1]", ["'8'", "integer"]),
    ("model", named("Wide", widths=8), ".widths", ["8", "array"]),
    ("model", "./package/relative.py:Net", "", ["relative.py:1: ImportError", "PACKAGE.MODULE:NAME"]),
    ("model", "./gone.py:Net", "", ["'./gone.py:Net'", "gone.py"]),
    ("model", "./broken.py:Net", "", ["broken.py:3: SyntaxError"]),
    ("model", "./fails.py:Net", "", ["fails.py:2: RuntimeError: at import"]),
    ("model", "./leaves.py:Net", "", ["leaves.py:2: SystemExit: 3"]),
    ("model", "./lacks.py:Net", "", ["lacks.py:1: ModuleNotFoundError", "not_installed_anywhere"]),
    ("model", "./mine.py:", "", ["FILE.py:NAME"]),
    ("model", "./mine.py", "", ["names a file", "write ./mine.py:NAME", "good, ", "Net", " more"]),
    ("model", "lenet6", "", ["unknown model", "did you mean 'lenet'"]),
    ("model", "a:b:c", "", ["FILE.py:NAME"]),
    ("model", ".:Net", "", ["FILE.py:NAME"]),
    ("model", "C:\\mine.py:Net", "", ["no file"]),
    ("model", "no_package.here:Net", "", ["ModuleNotFoundError", "no_package"]),
    ("loss", named("mean_loss", accuracy="gone"), "", ["no gone"]),
    ("strategy", "./mine.py:Pigeons", "", ["'pigeon'", "gloo"]),
    ("partitioner", "./mine.py:failing_parts", "", [line_of("parts"), "IndexError"]),
]
# A loss and what must fit it are tried together; the message is about the first of them that is a user's.
UNFIT: list[tuple[str, list[str]]] = [
    ("summed", ["mean", "8 samples each"]),
    ("failing_loss", [line_of("loss"), "ValueError: no loss"]),
]


def test_a_dataset_may_have_attributes_of_an_array(load: Load) -> None:
    assert load(dataset="./mine.py:Shaped").dataset.shape == (4,)


@pytest.mark.parametrize(
    ("field", "value", "path", "parts"), REFUSED, ids=[str(value) for _, value, _, _ in REFUSED]
)
def test_one_line_says_what_is_wrong(
    field: str, value: Any, path: str, parts: list[str], load: Load
) -> None:
    with pytest.raises(InputError) as raised:
        load(**{field: value})
    place, _, reason = str(raised.value).partition(f"s.yml: blocks[0].base.{field}{path}: ")
    assert not place
    assert [part for part in parts if part not in reason] == []
    assert "\n" not in reason
    assert str(FILE.parent) not in reason


@pytest.mark.parametrize("value", ["mine.py:Raises", "mine.py:gone", "none.py:gone"])
@pytest.mark.parametrize("form", ["{}", "{{name: {}}}"])
def test_the_message_about_an_option_names_its_value_once(
    value: str, form: str, folder: Path, imports: Imports
) -> None:
    text = yaml.safe_dump({"name": "s", "blocks": [{"base": BASE}]})
    option = f"dataset={form.format(folder / value)}"
    with pytest.raises(InputError, match=re.escape(f"--set {option}: ")) as raised:
        load_sweep(Path("s.yml"), [option], text=text, imports=lambda _: imports)
    assert str(raised.value).count(value) == 1


@pytest.mark.parametrize(("loss", "parts"), UNFIT, ids=[loss for loss, _ in UNFIT])
def test_a_step_shows_whether_model_loss_and_dataset_fit(loss: str, parts: list[str], load: Load) -> None:
    with pytest.raises(InputError) as raised:
        load(loss=f"./mine.py:{loss}")
    assert [part for part in ["mine.py:Net", "mine.py:good", *parts] if part not in str(raised.value)] == []


@pytest.mark.parametrize("dataset", ["digits", "./mine.py:stated"])
def test_a_model_has_a_score_for_each_class(dataset: str, load: Load) -> None:
    """Also for classes of which no sample is tried."""
    with pytest.raises(InputError, match=r"2 scores for each sample.* 10 classes, 0 to 9"):
        load(dataset=dataset, model="./mine.py:TwoScores")


def test_a_loss_of_its_own_may_have_fewer_outputs_than_classes(load: Load) -> None:
    load(dataset="./mine.py:good", model="./mine.py:Flat", loss=named("absolute", accuracy="always"))
    with pytest.raises(InputError, match=r"out of bounds.*\(17, 2\).* 3 classes"):
        load(model="./mine.py:TwoScores", loss=named("rounding", accuracy="always"))


def test_a_loss_meets_every_class_of_a_sorted_dataset(load: Load) -> None:
    with pytest.raises(InputError, match="mean of the losses"):
        load(dataset="./mine.py:in_order", loss="./mine.py:weighted")


def test_a_partitioner_meets_every_class_of_a_large_sorted_dataset(load: Load) -> None:
    load(dataset=named("in_order", samples=200_000), partitioner="./mine.py:three_classes")


def test_a_gradient_in_some_steps_only_is_refused_where_ranks_need_it_in_all(load: Load) -> None:
    for strategy in ("ddp", "zero1", "zero2", "fsdp"):
        with pytest.raises(InputError, match=r"right\.weight gets one from.*: all_reduce"):
            load(model="./mine.py:Sometimes", strategy=strategy)
        load(model="./mine.py:Tree", strategy=strategy)
    load(model="./mine.py:Sometimes", strategy="all_reduce")


NORMALISED: dict[str, Any] = {
    "model": "./mine.py:Normalised",
    "transport": "memory",
    "strategy": "all_reduce",
    "batch_size": 8,
}


@pytest.mark.parametrize(
    ("fields", "named"),
    [  # 48 training samples
        ({"batch_size": 23}, "24 samples of part 0.*batch_size, such as 24"),
        ({"nodes": 5}, "9 samples of part 3.*such as 10"),
        ({"nodes": 5, "partitioner": "contiguous"}, "9 samples of part 3"),
        ({"accumulate": 5}, "8 samples per step and 5 micro-batches.*such as 12"),
        ({"strategy": "serial", "nodes": 1, "batch_size": 47}, "48 samples of part 0.*such as 48"),
        ({"nodes": 5, "batch_per": "run", "batch_size": 40}, "8 samples per step.*such as 50"),
    ],
    ids=str,
)
def test_a_batch_of_one_does_not_meet_batch_norm(fields: dict[str, Any], named: str, load: Load) -> None:
    with pytest.raises(InputError, match=rf"batch_size: .*{named}"):
        load(**{**NORMALISED, **fields})


def test_other_models_and_sizes_take_a_batch_of_one(load: Load) -> None:
    load(**NORMALISED)
    load(**NORMALISED | {"nodes": 5, "strategy": {"name": "all_reduce", "uneven": "pad"}, "batch_size": 10})
    load(**NORMALISED | {"batch_size": 23, "model": "./mine.py:Net"})
    load(**NORMALISED | {"batch_size": 23, "model": named("Normalised", frozen=True)})


def test_parts_of_sizes_that_depend_on_labels_are_checked_before_training(load: Load) -> None:
    partitioner = "quantity"
    run = load(**NORMALISED, partitioner=partitioner)
    train = Split(np.zeros((48, 4), np.float32), np.arange(48) % 3)
    sizes = [len(part) for part in partition(run, RngFactory(0), train.labels, 2, 1)]
    run = load(**NORMALISED | {"batch_size": sizes[1] - 1}, partitioner=partitioner)
    with pytest.raises(DataError, match=f"{sizes[1]} samples of part 1"):
        PartitionedSplit(train, run, RngFactory(0), 2).partition(1)


def test_a_loss_of_classes_needs_them(load: Load) -> None:
    with pytest.raises(InputError, match=r"mine\.py:numbers with the loss nll.*floating-point"):
        load(dataset="./mine.py:numbers")


@pytest.mark.parametrize("loss", ["nll", "cross_entropy", named("rounding", accuracy="always")])
def test_labels_that_are_floating_point_numbers_are_no_classes(loss: Any, load: Load) -> None:
    with pytest.raises(InputError, match=r"floating-point.*targets\.astype\(int\).*mse"):
        load(dataset="./mine.py:float_labels", model=named("OneNumber", outputs=3), loss=loss)


@pytest.mark.parametrize(
    "loss",
    ["mse", named("absolute", accuracy="always"), named("poisson", accuracy="always")],
    ids=str,
)
def test_whole_numbers_can_be_targets_of_a_regression(loss: Any, load: Load) -> None:
    run = load(dataset="./mine.py:float_labels", model="./mine.py:Flat", loss=loss)
    assert run.dataset.class_count == 1


def test_labels_of_floating_point_numbers_can_be_probabilities(load: Load) -> None:
    dataset = named("float_labels", classes=2)
    load(dataset=dataset, model="./mine.py:Flat", loss=named("entropy", accuracy="always"))


def test_accuracies_are_shares(load: Load) -> None:
    with pytest.raises(InputError, match="100"):
        load(loss=named("mean_loss", accuracy="percent"))


def test_a_model_that_is_no_chain_is_not_split(load: Load) -> None:
    run = load(model="./mine.py:Tree")
    assert run.model.indivisible
    assert load().model.indivisible is None
    for strategy in ("pipeline", "tensor_parallel"):
        with pytest.raises(InputError, match=r"cannot train mine\.py:Tree"):
            load(model="./mine.py:Tree", strategy=strategy)


@pytest.mark.parametrize("partitioner", ["classes", "dirichlet", "shards", "stratified", "feature"])
def test_partitioners_of_classes_or_images_need_them(partitioner: str, load: Load) -> None:
    fields = {"dataset": "./mine.py:numbers", "model": "./mine.py:OneNumber", "loss": "mse"}
    assert load(**fields).dataset.class_count == 1
    with pytest.raises(InputError, match=r"base\.partitioner.*(no classes|images)"):
        load(**fields, partitioner=partitioner)


def test_what_a_component_prints_is_no_answer(load: Load) -> None:
    assert load(model="./mine.py:loud").model.names


@pytest.mark.slow
def test_a_component_that_hangs_is_refused_and_the_next_is_tried(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imports = Imports(folder)
    imports.resolve(BASE)
    monkeypatch.setattr(module, "ANSWER_S", 0.5)
    with pytest.raises(ComponentError, match=r"mine\.py:hangs.*0\.5 s"):
        imports.resolve({**BASE, "model": "./mine.py:hangs"})
    monkeypatch.undo()
    assert imports.resolve({**BASE, "model": named("Net", width=9)})
    imports.close()


@pytest.mark.parametrize("directory", ["with space ü", "co:lon", "one"])
def test_the_key_does_not_depend_on_the_directory(directory: str, load: Load) -> None:
    there = {"dataset": f"./{directory}/mine.py:good", "model": f"./{directory}/mine.py:Net"}
    assert load(**there).key == load().key
    assert load(**there).name_of("model") == f"{directory}/mine.py:Net"


def test_the_key_depends_on_parameters_that_are_not_the_default(load: Load) -> None:
    assert load(model=named("Net", width=8)).key == load().key
    assert load(model=named("Net", width=9)).key != load().key
    assert load(model=named("Wide", widths=[8])).key == load(model="./mine.py:Wide").key


def test_a_strategy_says_what_it_cannot_recompute(load: Load) -> None:
    found = load(strategy="./mine.py:InRounds").strategy
    assert (found.parts_of_work, found.recompute_error("selective")) == (7, None)
    with pytest.raises(InputError, match="it exchanges"):
        load(strategy="./mine.py:InRounds", recompute="full")


def test_a_strategy_may_have_rounds(load: Load) -> None:
    """As nodes know them: from what the spec says of the component."""
    strategy = named("InRounds", participation={"fraction": 0.5}, local_steps=3)
    rounds = load(strategy=strategy).strategy.rounds
    assert rounds is not None
    assert (rounds.participation.fraction, rounds.steps) == (0.5, 3)
    assert load(strategy="./mine.py:InRounds").strategy.rounds is None


def test_the_files_of_a_component_are_those_that_it_imports_or_opens(load: Load, imports: Imports) -> None:
    net = load(model="./lazy.py:net").model
    assert imports.code is not None
    files = {
        str(path.relative_to(imports.code / net.imported.folder))
        for path in (imports.code / net.imported.folder).rglob("*")
        if path.is_file()
    }
    assert files == {"lazy.py", "layers.py", "package/__init__.py", "package/inner.py", "mine.py"}
    rows = load(dataset="./table.py:rows").dataset
    assert (imports.code / rows.imported.folder / "table.csv").is_file()


def test_components_of_one_directory_share_their_modules(load: Load) -> None:
    run = load(model="./lazy.py:net", loss="./lazy.py:loss")
    assert run.model.imported.folder == run.loss.imported.folder == run.dataset.imported.folder


def test_modules_of_the_same_name_in_two_directories_are_refused(load: Load) -> None:
    with pytest.raises(InputError, match="different modules common"):
        load(model="./one/net.py:Net", loss="./two/net.py:mean")


def test_large_files_are_refused(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_code, "MOST_BYTES", 100)
    with pytest.raises(InputError, match=r"base\.dataset: table\.py:rows.*data_dir"):
        load(dataset={"name": "./table.py:rows", "test_share": 0.3})


def test_options_count_paths_from_the_current_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert from_here("./mine.py:Net") == "/mine.py:Net"
    assert from_here({"name": "mine.py:Net", "width": 3}) == {"name": "/mine.py:Net", "width": 3}
    assert from_here("package.mine:Net") == "package.mine:Net"
    assert from_here(None) is None


@pytest.mark.slow
def test_skip_and_published_figures_select_users_components(imports: Imports) -> None:
    models = ["./mine.py:Net", "./mine.py:Tree"]
    published = {"runs": {"model": "./mine.py:Net"}, "accuracy": 0.9}
    block = {
        "name": "one",
        "base": BASE,
        "axes": {"model": models, "nodes": [1, 2]},
        "skip": [{"model": ["mine.py:Tree"]}, {"nodes": 1}],
        "published": [published],
    }
    content = {"name": "s", "blocks": [block]}
    (run,) = load_sweep(Path("s.yml"), text=yaml.safe_dump(content), imports=lambda _: imports).runs
    assert run.name_of("model") == "mine.py:Net"


def test_editors_accept_what_a_sweep_file_can_import() -> None:
    schema = json.loads((FILE.parents[2] / "schemas" / "sweep.schema.json").read_text())
    page = (FILE.parents[2] / "docs" / "your_own.md").read_text()
    example = yaml.safe_load(page.partition("# topics.yml\n")[2].partition("```")[0])
    Draft202012Validator(schema).validate(example)


def test_ranks_that_are_threads_load_a_module_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = tmp_path / tmp_path.name  # modules are named after their folder
    folder.mkdir()
    (folder / "slow.py").write_text("import time\ntime.sleep(0.2)\n\n\ndef made():\n    pass\n")
    with ThreadPoolExecutor(2) as ranks:
        loaded = [*ranks.map(lambda _: source.load(folder, "slow.py", "made"), range(2))]
    assert loaded[0] is loaded[1]
