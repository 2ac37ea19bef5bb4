"""Mistakes in imports of components: paths, parameters, files, keys, and what must fit together."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import yaml

from orchestrator.errors import InputError
from orchestrator.sandbox.base import SandboxError
from orchestrator.sweeps import imports as module
from orchestrator.sweeps import staged_code
from orchestrator.sweeps.component_names import from_here
from orchestrator.sweeps.imports import ComponentError, Imports
from orchestrator.sweeps.load import load_sweep
from orchestrator.sweeps.trials import TrialError
from trainer.components.messages import Place, Request
from trainer.core import user_code
from trainer.core.regular_files import RefusedFile
from trainer.core.rng import RngFactory
from trainer.data.base import DataError, Split
from trainer.spec.run_spec import RunSpec
from trainer.training.loader import PartitionedSplit
from trainer.training.partition import partition

FILE = Path(__file__).parents[2] / "written_components.py"
LINES = FILE.read_text().splitlines()
Load = Callable[..., RunSpec]

BASE = {"dataset": "./mine.py:vectors", "model": "./mine.py:Net", "strategy": "ddp", "nodes": 2}
FILES = {
    "broken.py": "import os\n\ndef f(:\n",
    "fails.py": "\nraise RuntimeError('at import')\n",
    "lacks.py": "import not_installed_anywhere\n",
    "lazy.py": "def net(shape, classes):\n    import layers\n    return layers.Net(shape, classes)\n"
    "def loss(output, target):\n    from package import inner\n    return inner.of(output, target)\n",
    "layers.py": FILE.read_text(),
    "package/__init__.py": "",
    "package/inner.py": "from torch.nn.functional import nll_loss as of\n",
    "package/relative.py": "from .inner import of\n",
    "table.py": "import numpy as np\nfrom pathlib import Path\n"
    "def rows(data_dir):\n    data = np.loadtxt(Path(__file__).parent / 'table.csv', delimiter=',')\n"
    "    return data[:, :4] * np.loadtxt(data_dir / 'scale.txt'), data[:, 4].astype(int)\n",
    "data/scale.txt": "2",
    "one/net.py": "import common\nfrom mine import Net\n",
    "one/common.py": "WIDTH = 1\n",
    "one/mine.py": FILE.read_text(),
    "two/net.py": "import common\ndef mean(output, target):\n    return -output.mean()\n",
    "two/common.py": "WIDTH = 2\n",
    "co:lon and ü/mine.py": FILE.read_text(),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("users")
    shutil.copyfile(FILE, path / "mine.py")
    for name, text in FILES.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    np.savetxt(path / "table.csv", np.arange(200).reshape(40, 5) % 2, delimiter=",")
    for name in ("pipe.npz", "pipe.py", "pipes/one/a.png"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path / name)  # whose reader would wait for a writer
    return path


@pytest.fixture(scope="module")
def imports(folder: Path) -> Iterator[Imports]:
    """One process tries the components of all tests."""
    found = Imports(folder, folder / "data")
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


def at(mark: str) -> str:
    """`mine.py:12`: where the file has `# here: mark`."""
    return f"mine.py:{next(n for n, line in enumerate(LINES, 1) if line.endswith(f'# here: {mark}'))}"


def mine(name: str, **parameters: Any) -> Any:
    return {"name": f"./mine.py:{name}", **parameters} if parameters else f"./mine.py:{name}"


TWO = mine("Outputs", outputs=2)
TWO_CLASSES = {"dataset": mine("vectors", classes=2), "partitioner": mine("three_classes")}
SOMETIMES = {"model": mine("Tree", sometimes=True)}
REGRESSION = {"model": mine("Outputs", flat=True), "loss": mine("squares", accuracy="always")}
ROUNDING = {"model": mine("Outputs", outputs=3), "loss": mine("rounding", accuracy="always")}
NUMBERS = {"dataset": mine("numbers"), "model": mine("Outputs"), "loss": "mse"}


def norm(**fields: Any) -> dict[str, Any]:
    """A run of a model with BatchNorm. There are 48 samples."""
    common = {"transport": "memory", "strategy": "all_reduce", "batch_size": 8}
    return {"model": mine("Normalised"), **common, **fields}


# The fields of a run, by the place in the sweep file and the parts of the message.
REFUSED: dict[str, dict[str, Any]] = {
    f"dataset: {at('data')} | ValueError: no item": {"dataset": mine("Raises")},
    f"dataset: {at('relative path')} | table.npy | Path(__file__)": {"dataset": mine("beside")},
    "dataset.sample: 'samples' | allowed: samples, classes": {"dataset": mine("vectors", sample=3)},
    "dataset.samples: '3' | integer": {"dataset": mine("vectors", samples="3")},
    "dataset.scale: nan": {"dataset": mine("vectors", scale=float("nan"))},
    "dataset.path: missing": {"dataset": {"name": "npz"}},
    "dataset: pipe.npz | is a pipe": {"dataset": {"name": "npz", "path": "pipe.npz"}},
    "dataset: a.png | is a pipe": {"dataset": {"name": "image_folder", "path": "pipes"}},
    "dataset.size: 0 | greater than": {"dataset": {"name": "image_folder", "path": "pipes", "size": 0}},
    "model: pipe.py | no regular file": {"model": "./pipe.py:Net"},
    "model: names a file | write ./pipe.py:NAME": {"model": "./pipe.py"},
    "model: names a file | write ./mine.py:NAME | vectors, | more": {"model": "./mine.py"},
    "model: exited with code 3": {"model": mine("ends", how="exits")},
    "model: SIGSEGV": {"model": mine("ends", how="crashes")},
    f"model: {at('exit')} | SystemExit: bye": {"model": mine("ends", how="leaves")},
    "model: int | class or a function": {"model": mine("number")},
    "model: no nets | it defines | more": {"model": mine("nets")},
    "model.names[1]: 1 | string": {"model": mine("typed", names=["a", 1])},
    "model.shape: allowed: names, share": {"model": mine("typed", shape=[3])},
    "model: relative.py:1: ImportError | PACKAGE.MODULE:NAME": {"model": "./package/relative.py:Net"},
    "model: './gone.py:Net' | gone.py": {"model": "./gone.py:Net"},
    "model: broken.py:3: SyntaxError": {"model": "./broken.py:Net"},
    "model: fails.py:2: RuntimeError: at import": {"model": "./fails.py:Net"},
    "model: lacks.py:1: ModuleNotFoundError | not_installed_anywhere": {"model": "./lacks.py:Net"},
    "model: FILE.py:NAME | no import path": {"model": "a:b:c"},
    "model: FILE.py:NAME": {"model": "./mine.py:"},
    "model: ModuleNotFoundError | no_package": {"model": "no_package.here:Net"},
    "loss: no gone": {"loss": mine("plain", accuracy="gone")},
    "strategy: 'pigeon' | gloo": {"strategy": mine("Pigeons")},
    f"partitioner: {at('parts')} | AssertionError": TWO_CLASSES,
    "loss: different modules common": {"model": "./one/net.py:Net", "loss": "./two/net.py:mean"},
    # What does not fit together. The message names all of it.
    "model: mine.py:Net on mine.py:vectors | mean | 8 samples each": {"loss": mine("added")},
    f"model: mine.py:Net on mine.py:vectors | {at('loss')} | ValueError": {"loss": mine("failing_loss")},
    "model: nn.LogSoftmax | cross_entropy": {"model": mine("Outputs", outputs=3)},
    "model: 2 scores for each sample | 10 classes, 0 to 9": {"dataset": "digits", "model": TWO},
    # Also for classes of which no sample is tried.
    "model: 2 scores for each sample | 10 classes": {"dataset": mine("Stated"), "model": TWO},
    "model: out of bounds | (17, 2) | 3 classes": {**ROUNDING, "model": TWO},
    "model: mean of the losses | weight": {"loss": mine("weighted")},
    "model: mine.py:numbers with the loss nll | floating-point": {"dataset": mine("numbers")},
    "model: floating-point | targets.astype(int) | mse": {"dataset": mine("float_labels"), **ROUNDING},
    "model: 100": {"loss": mine("plain", accuracy="percent")},
    **{
        f"strategy: {name} | right.weight gets one from | : all_reduce": {**SOMETIMES, "strategy": name}
        for name in ("ddp", "zero1", "zero2", "zero3", "fsdp")
    },
    "strategy: cannot train mine.py:Tree": {"model": mine("Tree"), "strategy": "pipeline"},
    "recompute: it exchanges": {"strategy": mine("Recomputes"), "recompute": "full"},
    **{
        f"partitioner: {name} | {need}": {**NUMBERS, "partitioner": name}
        for name, need in (("classes", "no classes"), ("dirichlet", "no classes"), ("feature", "images"))
    },
    # A batch of one sample does not meet BatchNorm.
    "batch_size: 24 samples of part 0 | batch_size, such as 24": norm(batch_size=23),
    "batch_size: 9 samples of part 3 | such as 10": norm(nodes=5),
    "batch_size: 9 samples of part 3": norm(nodes=5, partitioner="contiguous"),
    "batch_size: 8 samples per step and 5 micro-batches | such as 12": norm(accumulate=5),
    "batch_size: 48 samples of part 0 | such as 48": norm(strategy="serial", nodes=1, batch_size=47),
    "batch_size: 8 samples per step | such as 50": norm(nodes=5, batch_per="run", batch_size=40),
}
ACCEPTED: list[dict[str, Any]] = [
    {"dataset": mine("Stated"), "model": mine("Outputs", outputs=10), "loss": "cross_entropy"},
    REGRESSION,
    {**REGRESSION, "dataset": mine("float_labels"), "loss": "mse"},
    NUMBERS,
    {"dataset": mine("vectors", samples=200_000), "partitioner": mine("three_classes")},
    {**SOMETIMES, "strategy": "all_reduce"},
    {"model": mine("Tree"), "strategy": "fsdp"},
    norm(),
    norm(nodes=5, strategy={"name": "all_reduce", "uneven": "pad"}, batch_size=10),
    norm(batch_size=23, model=mine("Net")),
    norm(batch_size=23, model=mine("Normalised", frozen=True)),
    {"model": mine("loud")},  # what it prints is no answer
]


@pytest.mark.parametrize("case", REFUSED)
def test_one_line_says_what_is_wrong(case: str, load: Load) -> None:
    with pytest.raises(InputError) as raised:
        load(**REFUSED[case])
    path, _, parts = case.partition(": ")
    place, _, reason = str(raised.value).partition(f"s.yml: blocks[0].base.{path}: ")
    assert not place
    assert [part for part in parts.split(" | ") if part not in reason] == []
    assert "\n" not in reason
    assert str(FILE.parent) not in reason


def test_what_fits_is_accepted(load: Load) -> None:
    for fields in ACCEPTED:
        assert load(**fields).model


def test_the_message_about_an_option_names_its_value_once(folder: Path, imports: Imports) -> None:
    text = yaml.safe_dump({"name": "s", "blocks": [{"base": BASE}]})
    names = [f"{folder}/{each}" for each in ("mine.py:Raises", "mine.py:gone", "none.py:gone")]
    for value in (*names, f"{{name: {names[0]}}}"):
        with pytest.raises(InputError, match=re.escape(f"--set dataset={value}: ")) as raised:
            load_sweep(Path("s.yml"), [f"dataset={value}"], text=text, imports=lambda _: imports)
        assert str(raised.value).count(value) == 1


def test_parts_of_sizes_that_depend_on_labels_are_checked_before_training(load: Load) -> None:
    fields = norm(partitioner="quantity")
    train = Split(np.zeros((48, 4), np.float32), np.arange(48) % 3)
    sizes = [len(part) for part in partition(load(**fields), RngFactory(0), train.labels, 2, 1)]
    run = load(**{**fields, "batch_size": sizes[1] - 1})
    with pytest.raises(DataError, match=f"{sizes[1]} samples of part 1"):
        PartitionedSplit(train, run, RngFactory(0), 2).partition(1)


def test_the_key_depends_on_parameters_and_neither_on_defaults_nor_on_the_directory(load: Load) -> None:
    there = {name: f"./co:lon and ü/mine.py:{BASE[name][10:]}" for name in ("dataset", "model")}
    assert load(**there).name_of("model") == "co:lon and ü/mine.py:Net"
    assert load(**there).key == load(model=mine("Net", width=8)).key == load().key
    assert load(model=mine("Net", width=9)).key != load().key
    assert load(model=mine("typed", names=["a"])).key == load(model=mine("typed")).key


def test_nodes_get_the_files_that_a_component_reads(load: Load, imports: Imports, tmp_path: Path) -> None:
    run = load(model="./lazy.py:net", loss="./lazy.py:loss")
    net = run.model.imported
    assert net.folder == run.loss.imported.folder == run.dataset.imported.folder  # and share their modules
    assert imports.code is not None
    copied = imports.code / net.folder
    files = {str(path.relative_to(copied)) for path in copied.rglob("*") if path.is_file()}
    assert files == {"lazy.py", "layers.py", "package/__init__.py", "package/inner.py", "mine.py"}
    other = load(dataset="./table.py:rows")
    folders = {each.imported.folder for each in (run.model, other.dataset, other.model)}
    for _ in range(2):
        imports.copy_to(tmp_path / "files", [run, other])
        assert {path.name for path in (tmp_path / "files").iterdir()} == folders
    copies = [*(tmp_path / "files" / other.dataset.imported.folder).iterdir()]
    assert {copy.name for copy in copies} == {"mine.py", "table.csv", "table.py"}
    assert all(copy.read_bytes() == (imports.directory / copy.name).read_bytes() for copy in copies)


def test_large_files_are_refused(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_code, "MOST_BYTES", 100)
    with pytest.raises(InputError, match=r"base\.dataset: table\.py:rows.*data_dir"):
        load(dataset={"name": "./table.py:rows", "test_share": 0.3})


def test_files_that_other_users_cannot_read_are_refused_if_nodes_have_one(tmp_path: Path) -> None:
    code, file = staged_code.StagedCode(), tmp_path / "mine.py"
    file.touch()
    for mode, by_all in ((0o604, True), (0o640, False)):
        file.chmod(mode)
        assert code.add(tmp_path, [file.name], "", by_all)
    with pytest.raises(RefusedFile):
        code.add(tmp_path, [file.name], "", readable_by_all=True)


def test_components_are_tried_with_the_memory_of_a_node_and_their_directories(folder: Path) -> None:
    sandbox = Mock(side_effect=SandboxError)
    tried = Imports(folder, make_sandbox=sandbox)
    for memory_mb in (511, 1024, 600):
        with pytest.raises(ComponentError):
            tried.resolve({**BASE, "memory_mb": memory_mb})
    assert [call.args[0].limits.memory_mb for call in sandbox.call_args_list] == [512, 1024, 600]
    with pytest.raises(TrialError):
        tried.trials.ask(Request(do="open", dataset=Place(directory="/data"), limit_s=1.0))
    assert [*sandbox.call_args.args[0].readable][:2] == [folder, Path("/data")]


def test_options_count_paths_from_the_current_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert from_here("./mine.py:Net") == "/mine.py:Net"
    assert from_here({"name": "mine.py:Net", "width": 3}) == {"name": "/mine.py:Net", "width": 3}
    assert from_here("package.mine:Net") == "package.mine:Net"
    assert from_here(None) is None


def test_skip_and_published_figures_select_users_components(imports: Imports) -> None:
    block = {
        "name": "one",
        "base": BASE,
        "axes": {"model": [mine("Net"), mine("Tree")], "nodes": [1, 2]},
        "skip": [{"model": ["mine.py:Tree"]}, {"nodes": 1}],
        "published": [{"runs": {"model": mine("Net")}, "accuracy": 0.9}],
    }
    text = yaml.safe_dump({"name": "s", "blocks": [block]})
    (run,) = load_sweep(Path("s.yml"), text=text, imports=lambda _: imports).runs
    assert run.name_of("model") == "mine.py:Net"


@pytest.mark.slow
def test_a_component_that_hangs_is_refused_and_the_next_is_tried(
    imports: Imports, monkeypatch: pytest.MonkeyPatch
) -> None:
    imports.resolve(BASE)
    monkeypatch.setattr(module, "ANSWER_S", 0.5)
    with pytest.raises(ComponentError, match=r"mine\.py:ends.*0\.5 s"):
        imports.resolve({**BASE, "model": mine("ends", how="hangs")})
    monkeypatch.undo()
    assert imports.resolve({**BASE, "model": mine("Net", width=10)})


def test_ranks_that_are_threads_load_a_module_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = tmp_path / tmp_path.name  # modules are named after their folder
    folder.mkdir()
    (folder / "slow.py").write_text("import time\ntime.sleep(0.2)\n\n\ndef made():\n    pass\n")
    with ThreadPoolExecutor(2) as ranks:
        loaded = [*ranks.map(lambda _: user_code.load(folder, "slow.py", "made"), range(2))]
    assert loaded[0] is loaded[1]
