"""Libraries that are read from a folder: repositories without a package, and a build that would replace a release.

The folder of all of them is named by the variable ``CONFORMANCE_SOURCES``, or by ``--sources``, which sets it.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

VARIABLE = "CONFORMANCE_SOURCES"


@dataclass(frozen=True)
class Source:
    """A library in a folder of its own below the folder of sources.

    Attributes:
        folder: its name there.
        get: commands that fill it, to be run in the folder of sources.
        paths: folders from which its own programs import, relative to the folder of sources, first ones first.
        needs: what pip has to install beside it.
    """

    folder: str
    get: str
    paths: tuple[str, ...]
    needs: str = ""

    @property
    def folders(self) -> list[str]:
        """The paths, absolute; none where the folder of sources is not named."""
        root = os.environ.get(VARIABLE)
        return [] if root is None else [str((Path(root) / path).resolve()) for path in self.paths]

    @property
    def exists(self) -> bool:
        """Whether the folder of sources is named and has all paths."""
        return bool(self.folders) and all(map(os.path.isdir, self.folders))

    @property
    def how(self) -> str:
        """How to get it, in a line."""
        needs = f" (pip install {self.needs})" if self.needs else ""
        return f"in the folder of --sources: {self.get}{needs}"

    @property
    def version(self) -> str:
        """Of the distribution in the folder, or the commit of the checkout."""
        folder = Path(os.environ[VARIABLE]) / self.folder
        for each in distributions(path=[str(folder)]):
            return each.version
        command = ["git", "-C", str(folder), "rev-parse", "--short=7", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def use(self) -> None:
        """Import from it in this process, before anything else of the same name."""
        sys.path[:0] = self.folders


def checkout(repository: str, commit: str, *paths: str, needs: str = "") -> Source:
    """A repository on GitHub at a commit; ``paths`` are relative to it, itself by default."""
    folder = repository.partition("/")[2]
    get = f"git clone https://github.com/{repository} && git -C {folder} checkout {commit}"
    return Source(folder, get, tuple(f"{folder}/{path}" for path in paths) if paths else (folder,), needs)


SOURCES = {
    "torchrl-nightly": Source(
        "torchrl-nightly",
        "pip install --no-deps --target torchrl-nightly torchrl-nightly==2026.10.27",
        ("torchrl-nightly",),
        needs="torchrl",
    ),
    "tianshou": Source(  # which names versions of pandas and deepdiff that do not go with those of others
        "tianshou",
        "pip install --no-deps --target tianshou tianshou==2.0.1",
        ("tianshou",),
        needs="cachebox deepdiff numba overrides pettingzoo sensai-utils",
    ),
    "cleanrl": checkout("vwxyzjn/cleanrl", "fe8d8a0", "cleanrl/ppo_trxl", needs="einops memory-gym minigrid tyro"),
    "episodic-transformer-memory-ppo": checkout(
        "MarcoMeter/episodic-transformer-memory-ppo",
        "acc5cb2",
        needs="einops gym gym-minigrid memory-gym reprint tblib",
    ),
    "recurrent-ppo-truncated-bptt": checkout(
        "MarcoMeter/recurrent-ppo-truncated-bptt", "a1e87a8", needs="memory-gym minigrid reprint tblib"
    ),
    "decision-transformer": Source(
        "decision-transformer",
        "git clone https://github.com/kzl/decision-transformer && git -C decision-transformer checkout e2d82e6 && "
        "pip install --no-deps --target transformers-4.17.0 transformers==4.17.0 tokenizers==0.13.3 "
        "huggingface_hub==0.23.5",
        ("decision-transformer/gym", "transformers-4.17.0"),
        needs="sacremoses",
    ),
    "amago": checkout("UT-Austin-RPL/amago", "2d85600", needs="accelerate einops gin-config gym termcolor wandb"),
    "DTQN": checkout("kevslinger/DTQN", "9f8d72b", needs="gym joblib wandb"),
}
"""By the name of the library in the table."""

AGALITE = checkout("subho406/agalite", "101acbe", "src_pure/models", needs="flax")
"""The authors' code of a memory, which only a test of ours reads."""
