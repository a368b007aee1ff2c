"""Runs the commands of docs/gallery.md and takes their pictures; comparisons and suites, which take long, aside.

python docs/_tools/gallery.py FOLDER   # where runs go; those that are there are not trained again; needs Chromium
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

from PIL import Image

DOCS = Path(__file__).resolve().parents[1]
PICTURES = DOCS / "gallery"
OFFLINE, ONLINE = Path("runs/dt_cartpole_mixture-seed0"), Path("runs/gtrxl_cue_recall-seed0")
LONG = ("--sweep", "compare", "suite")
"""Words of commands that are left out."""
STEP = 82
"""Of the episode whose page is shown."""
PORT = 6017
"""Of TensorBoard."""


def main() -> None:
    """Run the commands in a folder, and write the pictures."""
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(exist_ok=True)
    PICTURES.mkdir(exist_ok=True)
    os.chdir(folder)
    os.environ |= {"MINARI_DATASETS_PATH": str(folder / "minari"), "OMP_NUM_THREADS": "1"}
    for words in commands((DOCS / "gallery.md").read_text()):
        made = {"train": f"runs/{words[2]}-seed0", "collect": "minari"}.get(words[1])
        if made is None or not Path(made).exists():
            subprocess.run([sys.executable, "-m", *words], check=True)
    shutil.copy(OFFLINE / "return_versus_target.png", PICTURES / "target.png")
    shutil.copy(ONLINE / "lookback.png", PICTURES / "lookback.png")
    page = (OFFLINE / "look.html").resolve().as_uri()
    take(f"{page}#step={STEP}&head=3&episode=1", DOCS / "look.png", 1200, 980)
    board = subprocess.Popen([sys.executable, "-m", "tensorboard.main", "--logdir", str(ONLINE), "--port", str(PORT)])
    try:
        wait_for(f"http://localhost:{PORT}/data/plugins_listing")
        take(f"http://localhost:{PORT}/#custom_scalars", PICTURES / "tensorboard.png", 1200, 980)
    finally:
        board.terminate()
        board.wait()


def commands(text: str) -> list[list[str]]:
    """The words of every command of this package in a page that takes minutes at most."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    words = [shlex.split(line) for line in lines]
    return [each for each in words if each[0] == "rltransformers" and not set(each) & set(LONG)]


def take(address: str, path: Path, width: int, height: int) -> None:
    """Write a picture of a page, with few colors."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("no Chromium; set CHROMIUM to the program")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=30000"]
    words = [program, *options, f"--window-size={width},{height}", f"--screenshot={path}", address]
    subprocess.run(words, check=True, capture_output=True)
    Image.open(path).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)


def wait_for(address: str) -> None:
    """Until something answers there, half a minute at most."""
    for _ in range(60):
        try:
            urlopen(address).close()
            return
        except OSError:
            time.sleep(0.5)
    raise SystemExit(f"nothing answers at {address}")


if __name__ == "__main__":
    main()
