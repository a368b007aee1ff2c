"""What stands beside a figure: the code, the packages and the machine that it was made with."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import torch

CODE = ("rltransformers", "agents", "envs", "zoo")
PACKAGES = ("torch", "stable-baselines3", "gymnasium", "rltransformers")


def checkout() -> Path | None:
    """Root of the source tree that this code lies in; None in an installed package."""
    root = Path(__file__).resolve().parents[1]
    return root if (root / "pyproject.toml").is_file() else None


def commit() -> str:
    """Commit of the code, with -dirty behind it when the code (not the results) has changed since.

    Empty in an installed package, whose version stands among those of the packages.
    """
    root = checkout()
    if root is None:
        return ""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", *CODE)
    return git("rev-parse", "--short=9", "HEAD") + ("-dirty" if changed else "")


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of the installed ones of ``packages``."""
    known = {}
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            known[package] = importlib.metadata.version(package)
    return known


def software() -> dict[str, str]:
    """Versions of Python and the packages that results depend on most."""
    return {"python": platform.python_version()} | versions(PACKAGES)


def processor() -> str:
    """Name of the CPU."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def device() -> str:
    """Name of the GPU, or of the CPU where there is none."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else processor()


def machine() -> str:
    """Processor or GPU, the vector instructions of the processor, which sums round differently with, and cores."""
    return f"{device()}, {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores"


def parameters(module: torch.nn.Module) -> int:
    """Number of weights."""
    return sum(weight.numel() for weight in module.parameters())
