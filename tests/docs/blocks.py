"""Runs the blocks of code in a page of the documents as a reader would: in order, in one folder.

Comments directly above a block, which readers do not see, tell what the test does differently:

    <!-- test: total_timesteps=256, episodes=4 -->     these numbers are replaced in the block
    <!-- test: train gtrxl_cue_recall --train.total_timesteps 256 -->     arguments behind commands that begin so
    <!-- test: setup policy = "random" -->             a line of Python that runs first
    <!-- test: continues -->                           the block needs what the Python block before it defined
    <!-- test: file my_module.py -->                  the block is a file; a Python block is imported
    <!-- test: skip needs an Atari emulator -->        the block does not run, for this reason
    <!-- test: where torchrl is installed -->          the block runs only where this module can be imported

Python blocks are executed, and diffs of Python as the program that they lead to. Commands of `rltransformers` run in
this process, examples in one of their own; of suites and scripts that take hours, and of `python -m` with a package of
ours, only the arguments are checked, of `make` the target, of `pip` extras and pins. YAML has to be a suite, variants,
a config, or a part of one.
"""

import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rltransformers.backbone import BackboneConfig
from rltransformers.cli.main import build_parser, main
from rltransformers.cli.variants import read_file
from rltransformers.core.modules import import_module
from rltransformers.training.runs.experiment import ExperimentConfig, read_experiment
from rltransformers.zoo.suites import read_suite

ROOT = Path(__file__).parents[2]
COMMANDS_OF_THE_PACKAGE = ("train", "evaluate", "collect")
"""Scripts that are the same as the command of their name."""


@dataclass(frozen=True)
class Block:
    """A block of code with the line of its fence and what stands in the comments above it."""

    page: str
    line: int
    language: str
    text: str
    directives: tuple[str, ...]

    @property
    def place(self) -> str:
        """Where a reader finds it."""
        return f"{self.page}:{self.line}"

    @property
    def skipped(self) -> str | None:
        """The reason for which the block does not run."""
        reasons = [each.removeprefix("skip").strip() for each in self.directives if each.split()[0] == "skip"]
        return reasons[0] if reasons else None

    @property
    def module(self) -> str | None:
        """What has to be installed for the block to run."""
        named = [re.fullmatch(r"where (\w+) is installed", each) for each in self.directives]
        return next((match.group(1) for match in named if match), None)


def blocks_of(text: str, page: str) -> list[Block]:
    """All fenced blocks of a Markdown text, of whatever language.

    Raises:
        ValueError: for a comment to this harness that stands above something else, or a fence that is not closed.
    """
    blocks, directives = [], []
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        comment = re.fullmatch(r"<!-- test: (.+?) -->", line.strip())
        fence = re.fullmatch(r"(\s*)```(\S*)", line)
        if comment:
            directives.append(comment.group(1))
        elif fence:
            body = []
            for _, inner in lines:
                if inner.strip() == "```":
                    break
                body.append(inner.removeprefix(fence.group(1)))
            else:
                raise ValueError(f"{page}:{number}: the block is not closed")
            blocks.append(Block(page, number, fence.group(2), "\n".join(body) + "\n", tuple(directives)))
            directives = []
        elif directives:
            raise ValueError(f"{page}:{number}: {directives[-1]!r} stands above something that is no block")
    return blocks


def run_page(text: str, page: str) -> None:
    """Run every block in the current folder.

    Raises:
        AssertionError: for a block that fails; it names the place.
    """
    names: dict[str, Any] = {}
    for block in blocks_of(text, page):
        if block.skipped is not None or (block.module and importlib.util.find_spec(block.module) is None):
            continue
        try:
            with warnings.catch_warnings(action="ignore" if block.module else None):  # of libraries that are not ours
                names = run(block, names)
        except (Exception, SystemExit) as error:
            raise AssertionError(f"{block.place}: {type(error).__name__}: {error}") from error


def run(block: Block, names: dict[str, Any]) -> dict[str, Any]:
    """Run one block; ``names`` are those of the Python block before. Returns those of this one."""
    source, prefixes, continues, setup, file = block.text, list[list[str]](), False, "", None
    for directive in block.directives:
        first, _, rest = directive.partition(" ")
        if directive == "continues":
            continues = True
        elif first == "file":
            file = Path(rest)
        elif first == "setup":
            setup += rest + "\n"
        elif first == "where":
            continue
        elif re.fullmatch(r"[\w.]+=\S+(, [\w.]+=\S+)*", directive):
            for pair in directive.split(", "):
                source = replaced(source, *pair.split("="))
        else:
            prefixes.append(shlex.split(directive))
    if block.language == "diff":
        source = "".join(line[1:] for line in source.splitlines(keepends=True) if not line.startswith("-"))
    if file is not None:
        file.write_text(source)
    if file is not None and block.language == "python":
        names = dict(vars(import_module(file.stem)))
    elif block.language in ("python", "diff"):
        names = names if continues else {"__name__": "__main__"}
        exec(setup, names)
        exec(compile(source, block.place, "exec"), names)
    elif block.language == "sh":
        exec(setup, {})
        run_shell(source, prefixes)
    elif block.language == "yaml":
        check_yaml(yaml.safe_load(source))
    elif block.language != "text":
        raise ValueError(
            f"a block of language {block.language!r}; python, diff, sh, yaml and text (which is not run) are known"
        )
    return names


def replaced(source: str, name: str, value: str) -> str:
    """``source`` with every number behind ``name=``, ``name:`` or ``--name`` replaced.

    Raises:
        ValueError: when there is none, so that a directive does not outlive what it was written for.
    """
    new, count = re.subn(
        rf"((?<![\w.]){re.escape(name)}(?:\s*[=:]\s*|\s+))-?[\d._]+(?:e-?\d+)?", rf"\g<1>{value}", source
    )
    if not count:
        raise ValueError(f"the test replaces {name}, which is not in the block")
    return new


def run_shell(source: str, prefixes: Sequence[Sequence[str]]) -> None:
    """Run or check every command; each prefix in ``prefixes`` has to fit one of them.

    Raises:
        ValueError: for a command that fails or that nothing is known about.
    """
    fitting = set()
    for line in source.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[0] == "python" and words[1].startswith("scripts/") and Path(words[1]).stem in COMMANDS_OF_THE_PACKAGE:
            words = ["rltransformers", Path(words[1]).stem, *words[2:]]
        for index, prefix in enumerate(prefixes):
            beginning = [word for word in prefix[: _options(prefix)]]
            if words[0] == "rltransformers" and words[1 : 1 + len(beginning)] == beginning:
                words = with_options(words, prefix[len(beginning) :])
                fitting.add(index)
        run_command(words)
    for index, prefix in enumerate(prefixes):
        if index not in fitting:
            raise ValueError(f"no command of the block begins with {shlex.join(prefix)}")


def with_options(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """``words`` with pairs of ``--name value`` behind them, in place of those of the same names."""
    names = options[::2]
    kept = [word for word, before in zip(words, ("", *words), strict=False) if not {word, before} & set(names)]
    return [*kept, *options]


def _options(words: Sequence[str]) -> int:
    return next((index for index, word in enumerate(words) if word.startswith("--")), len(words))


def run_command(words: Sequence[str]) -> None:
    """Run one command line, or check it where running would take hours or install something.

    Raises:
        ValueError: when it fails or is unknown.
    """
    program, *arguments = words
    if program == "rltransformers" and arguments[0] == "suite":
        build_parser().parse_args(arguments)
    elif program == "rltransformers":
        try:
            code = main(arguments)
        except SystemExit as end:  # argparse: --help, --version, or a refused argument
            code = int(end.code or 0)
        if code:
            raise ValueError(f"{shlex.join(words)} ended with {code}")
    elif program == "python" and arguments[0].startswith(("scripts/", "docs/_tools/", "benchmarks/", "tests/")):
        check_script(arguments[0], arguments[1:])
    elif program == "python" and arguments[0] == "-m" and arguments[1].startswith("rltransformers."):
        check_arguments(f"{arguments[1]}.__main__", arguments[2:])
    elif program == "python" and arguments[0] == "-m" and arguments[1].startswith("tests."):
        check_arguments(arguments[1], arguments[2:])
    elif program == "python" and arguments[0].startswith("examples/"):
        done = subprocess.run([sys.executable, ROOT / arguments[0], *arguments[1:]], capture_output=True, text=True)
        if done.returncode:
            raise ValueError(done.stderr)
    elif program == "make":
        done = subprocess.run(["make", "-n", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(done.stderr)
    elif "pip" in Path(program).name and arguments[0] == "install":
        check_install(arguments[1:])
    elif list(words[1:3]) != ["-m", "venv"] and program != "tensorboard":
        raise ValueError(f"nothing is known about the command {shlex.join(words)}")


def check_script(path: str, arguments: Sequence[str]) -> None:
    """The script is there and its parser takes the arguments.

    Raises:
        ValueError: when one of them is not so.
    """
    if not (ROOT / path).is_file():
        raise ValueError(f"there is no {path}")
    check_arguments(path.removesuffix(".py").replace("/", "."), arguments)


def check_arguments(module: str, arguments: Sequence[str]) -> None:
    """The parser of a module takes the arguments.

    Raises:
        ValueError: when it does not.
    """
    try:
        importlib.import_module(module).parser().parse_args(arguments)
    except SystemExit as end:  # 0 is --help
        if end.code:
            raise ValueError(f"{module} refuses {shlex.join(arguments)}") from end


def check_install(arguments: Sequence[str]) -> None:
    """Extras are those of pyproject.toml, pins those of constraints.txt.

    Raises:
        ValueError: for others.
    """
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pins = (ROOT / "constraints.txt").read_text().split()
    for word in arguments:
        named = re.search(r"\[(.+)\]", word)
        for extra in named.group(1).split(",") if named else ():
            if extra not in extras:
                raise ValueError(f"pyproject.toml has no extra {extra!r}")
        if "==" in word and word not in pins:
            raise ValueError(f"{word} is not the pin of constraints.txt")


def check_yaml(values: dict[str, Any]) -> None:
    """A suite, a whole config, a part of one over a packaged config, variants, or a backbone.

    Raises:
        ConfigError: for keys and values that are neither.
    """
    if "tasks" in values:
        Path("suite.yaml").write_text(yaml.safe_dump(values))
        read_suite("suite.yaml")
    elif set(values) <= set(ExperimentConfig.__dataclass_fields__):
        base = ROOT / "configs" / "gtrxl_tmaze.yaml"
        path = Path("block.yaml")
        path.write_text(yaml.safe_dump(values if "agent" in values else yaml.safe_load(base.read_text()) | values))
        read_experiment(path)
    elif set(values).isdisjoint({"preset", *BackboneConfig.__dataclass_fields__}):
        Path("block.yaml").write_text(yaml.safe_dump(values))
        read_file("block.yaml")
    else:
        BackboneConfig.from_dict(values)
