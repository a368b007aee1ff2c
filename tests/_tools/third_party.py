"""Run the checks in which packages of others do most of the work, and write what they said to docs/third_party.md.

    make test-third-party                      # installs the packages and runs this program
    python tests/_tools/third_party.py tests/conformance

The page is written only when all tests ran, so that it never stands for a part of them.
"""

import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from rltransformers.core.files import replacing  # noqa: E402
from rltransformers.zoo.facts import processor, versions  # noqa: E402

PAGE = ROOT / "docs" / "third_party.md"
PACKAGES = (
    *("torch", "stable-baselines3", "sb3-contrib", "gymnasium", "minari", "onnx", "onnxruntime", "transformers"),
    *("x-transformers", "torchrl", "d3rlpy", "ray", "datasets", "safetensors", "envpool", "rl-zoo3", "huggingface-hub"),
    *("skrl", "rsl-rl-lib"),
    *("bsuite", "shimmy", "ogbench", "popgym", "gymnax", "jax", "fla-core", "xlstm", "rwkv", "s5-pytorch", "memax"),
)
COLUMNS = ("passed", "skipped", "failed")
HEAD = """# Checks with packages of others

Tests that mostly exercise packages of others carry the mark `third_party` and stand outside `make test`: policies of
other libraries in the [conformance kit](conformance.md), checkpoints of Hugging Face, presets as ONNX files in ONNX
Runtime, machine code of rare options, memories of 2022 to 2026 as published code computes them, Ray, RL Baselines3 Zoo,
MoviePy, bsuite, OGBench. `make test-third-party` installs what they need and writes this page; why something is skipped
stands in its output.
"""


def main(words: list[str]) -> int:
    """Exit status of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = ["-m", "pytest", "-n", "2", "--dist", "loadgroup", "-m", "third_party", "-rs", f"--junitxml={report}"]
        status = subprocess.run([sys.executable, *command, *words], cwd=ROOT, check=False).returncode
        if not words and report.is_file():
            with replacing(PAGE) as temporary:
                temporary.write_text(page(counts(report)))
            print(f"written  {PAGE.relative_to(ROOT)}")
    return status


def counts(report: Path) -> dict[str, Counter[str]]:
    """How many tests of every module passed, were skipped and failed, from a file of ``pytest --junitxml``."""
    found: dict[str, Counter[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        ended = {child.tag for child in case}
        kind = "failed" if ended & {"failure", "error"} else "skipped" if "skipped" in ended else "passed"
        module = ".".join(part for part in case.attrib["classname"].split(".") if part[:1].islower())
        found.setdefault(module, Counter())[kind] += 1
    return found


def page(found: dict[str, Counter[str]]) -> str:
    """The page: one row per module, and what was installed."""
    rows = [
        f"| `{module.replace('.', '/')}.py` | {' | '.join(str(found[module][name]) for name in COLUMNS)} |"
        for module in sorted(found)
    ]
    total = sum(found.values(), Counter())
    rows.append(f"| all | {' | '.join(str(total[name]) for name in COLUMNS)} |")
    installed = [f"{package} {version}" for package, version in versions(PACKAGES).items()]
    lines = [
        HEAD,
        f"Last run on {time.strftime('%Y-%m-%d')}, {processor()}, with {', '.join(installed)}.",
        "",
        f"| tests | {' | '.join(COLUMNS)} |",
        "|---|---:|---:|---:|",
        *rows,
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
