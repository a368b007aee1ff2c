"""What lies in the current folder is no module of a process that this package starts."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from rltransformers.cli.engines import LocalJob, Order
from tests.cli.test_runs import ONLINE

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "yaml",
    "torch",
    "numpy",
    "gymnasium",
    "minigrid",
    "optuna",
    "stable_baselines3",
    "cloudpickle",
    "typing_extensions",
)
CONFIG = ONLINE | {"algorithm": {"n_steps": 8, "n_epochs": 1, "device": "cpu"}, "train": {"total_timesteps": 24}}
WORKERS = """
from rltransformers.envs import make_vec_env
if __name__ == "__main__":
    env = make_vec_env("CartPole-v1", 1, processes=True)
    env.reset()
    env.close()
    import os
    print("PYTHONSAFEPATH" in os.environ)
"""


@pytest.fixture
def traps(tmp_path: Path) -> Path:
    """A folder with a module of every name of the standard library and of packages; each leaves a mark."""
    for name in {*sys.stdlib_module_names, *PACKAGES}:
        text = f"with open({str(tmp_path / 'owned')!r}, 'a') as mark: mark.write({name + ' '!r})\n"
        (tmp_path / f"{name}.py").write_text(f"{text}raise ImportError('a trap')\n")
    (tmp_path / "online.yaml").write_text(yaml.safe_dump(CONFIG))
    return tmp_path


def finished(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A program of Python that ran in ``folder``, whose traps it left alone."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=500
    )
    mark = folder / "owned"
    assert not mark.exists(), f"{mark.read_text()}was run; {done.stderr}"
    assert done.returncode == 0, done.stderr
    return done


def test_an_ordered_process_imports_nothing_from_its_folder(traps: Path) -> None:
    order = Order(("-c", "import yaml, wave"), "", traps / "log", folder=traps)
    assert LocalJob(order).wait() == 0
    assert not (traps / "owned").exists()


@pytest.mark.parametrize("words", [("-um",), ("-X", "utf8", "-m")])
def test_python_m_is_the_command_without_the_current_folder(traps: Path, words: tuple[str, ...]) -> None:
    assert "CartPole" in finished(traps, *words, "rltransformers", "show", "--env", "CartPole-v1").stdout


@pytest.mark.parametrize("module", ["rltransformers.conformance", "rltransformers.cli.main"])
def test_python_m_with_a_module_of_the_package_leaves_out_the_current_folder(traps: Path, module: str) -> None:
    assert "usage" in finished(traps, "-m", module, "--help").stdout


def test_python_m_with_a_package_that_imports_this_one_keeps_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").write_text("import rltransformers")
    (tmp_path / "own" / "__main__.py").write_text("import beside")
    (tmp_path / "beside.py").write_text("print('found')")
    done = subprocess.run([sys.executable, "-m", "own"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.stdout == "found\n", done.stderr


@pytest.mark.slow
def test_worker_environments_import_nothing_from_the_current_folder(
    traps: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    program = tmp_path_factory.mktemp("program") / "workers.py"
    program.write_text(WORKERS)
    assert finished(traps, str(program)).stdout == "False\n"  # the variable that keeps it out is gone behind the start


@pytest.mark.slow
@pytest.mark.parametrize("words", [("tune", "--trials", "1", "--search", "algorithm.gamma=[0.9, 0.8]")])
def test_runs_in_processes_of_their_own_import_nothing_from_the_current_folder(
    traps: Path, words: tuple[str, ...]
) -> None:
    finished(traps, str(Path(sys.executable).with_name("rltransformers")), words[0], "online.yaml", *words[1:])


def starts() -> Iterator[tuple[str, ast.List]]:
    """Every command line that begins with this interpreter, in the package and the scripts."""
    for folder in ("rltransformers", "agents", "envs", "scripts", "zoo", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.List) and node.elts and ast.unparse(node.elts[0]) == "sys.executable":
                    yield str(path.relative_to(ROOT)), node


def test_every_process_of_the_package_and_the_scripts_leaves_out_the_current_folder() -> None:
    in_the_tree = ("scripts/benchmark", "benchmarks/")  # run with cwd=ROOT
    places = [(path, ast.unparse(node)) for path, node in starts() if not path.startswith(in_the_tree)]
    assert len(places) >= 4
    assert not [(path, text) for path, text in places if not text.startswith("[sys.executable, '-P'")]
