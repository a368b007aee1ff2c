"""Files of strangers: what is data never runs code, and what is a program runs only for those who trust it."""

import base64
import io
import json
import pickle
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import yaml

from rltransformers.agents import DecisionTransformer, GTrXLPPO
from rltransformers.cli.configs import find_config, packaged_configs
from rltransformers.cli.main import main
from rltransformers.cli.trust import collect_programs, programs
from rltransformers.core.checkpoint import save_checkpoint
from rltransformers.core.errors import CheckpointError, ConfigError, DataError
from rltransformers.data import load_trajectories
from rltransformers.training.normalization import load_normalization
from rltransformers.training.runs.experiment import read_experiment
from rltransformers.training.runs.run_folder import RunFolder
from tests.cli.test_runs import LSTM, OFFLINE, ONLINE, refused, run

STRANGER = """
from pathlib import Path
import gymnasium, numpy as np
Path("owned").touch()
class Wrapper(gymnasium.Wrapper): pass
def act(observations, episode_starts, generator): return np.zeros(len(episode_starts), int)
"""
SHORT = {"algorithm": {"n_steps": 8, "n_epochs": 1, "device": "cpu"}, "train": {"total_timesteps": 24}}


class Payload:
    """Makes the file ``owned`` when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("owned").absolute(),)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to run in, with the module ``stranger`` and nothing owned yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "minari").mkdir()
    (tmp_path / "stranger.py").write_text(STRANGER)
    yield tmp_path
    sys.modules.pop("stranger", None)


def owned() -> bool:
    return Path("owned").exists()


def foreign(place: str) -> tuple[str, dict[str, Any], str]:
    """The name of a config, the config with a program at that place, and what the message says about it."""
    online: dict[str, Any] = ONLINE["environment"]  # type: ignore[assignment]
    if place == "environment.id":
        changed = {**online, "id": "stranger:rltransformers/CueRecall-v0"}
        return "online", {**ONLINE, **SHORT, "environment": changed}, "imports the module stranger"
    if place == "environment.wrappers":
        changed = {**online, "wrappers": [{"name": "stranger:Wrapper"}]}
        return "online", {**ONLINE, **SHORT, "environment": changed}, "imports the module stranger"
    behaviors = ["random", "stranger:act=2"]
    return "offline", {**OFFLINE, "dataset": {"collect": {"episodes": 3, "behaviors": behaviors}}}, "module stranger"


PLACES = ("environment.id", "environment.wrappers", "dataset.collect.behaviors")


@pytest.mark.parametrize("name", ["evil.pkl", "evil.pkl/", "evil.PKL/.", "./evil.pickle//"])
def test_a_pickle_as_dataset_is_not_read_unasked_however_its_path_is_written(
    work: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    Path(name).write_bytes(pickle.dumps(Payload()))
    Path("foreign.yaml").write_text(yaml.safe_dump({**OFFLINE, "dataset": {"id": name}}))
    message = refused(capsys, "train", "foreign.yaml")
    assert "foreign.yaml would run code" in message and "is a pickle" in message
    assert not owned()


@pytest.mark.parametrize("place", PLACES)
def test_a_program_in_a_config_runs_only_when_trusted_or_typed(
    work: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    name, config, effect = foreign(place)
    Path("foreign.yaml").write_text(yaml.safe_dump(config))
    message = refused(capsys, "train", "foreign.yaml")
    assert "foreign.yaml would run code" in message and place in message and effect in message and "--trust" in message
    assert not owned() and not Path("runs").exists()
    plain = {"online": {**ONLINE, **SHORT}, "offline": OFFLINE}[name]
    Path("own.yaml").write_text(yaml.safe_dump(plain))
    value: Any = config
    for key in place.split("."):
        value = value[key]
    out = run(
        capsys, "train", "own.yaml", f"--{place}", yaml.safe_dump(value), "--train", yaml.safe_dump(config["train"])
    )
    assert owned()
    needs_trust = place != "dataset.collect.behaviors"  # nothing is recorded for an evaluation
    assert ("--episodes 100 --trust" in out) == needs_trust
    Path("owned").unlink()
    del sys.modules["stranger"]
    assert "own-seed0 would run code" in refused(capsys, "train", "--resume", "runs/own-seed0")
    if needs_trust:
        assert "own-seed0 would run code" in refused(capsys, "evaluate", "runs/own-seed0")
    assert not owned()
    run(capsys, "evaluate", "runs/own-seed0", *(["--trust"] if needs_trust else []))
    assert owned() == needs_trust
    run(capsys, "train", "--resume", "runs/own-seed0", "--trust")
    assert owned()


def test_the_word_of_a_person_at_a_terminal_is_enough(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("foreign.yaml").write_text(yaml.safe_dump(foreign("environment.id")[1]))

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for answer, code in (("n\n", 2), ("", 2), ("y\n", 0)):
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        assert not owned()
        assert main(["train", "foreign.yaml", "--verbose"]) == code
    assert owned()


def sb3_zip(path: Path) -> None:
    """A file of Stable-Baselines3 whose first value is the payload."""
    serialized = base64.b64encode(pickle.dumps(Payload())).decode()
    data = json.dumps({"policy_class": {":type:": "x", ":serialized:": serialized}})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", data)


def test_the_checkpoint_of_the_lstm_is_loaded_only_when_trusted(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("lstm.yaml").write_text(yaml.safe_dump({**LSTM, "train": {"total_timesteps": 16}}))
    assert "--episodes 100 --trust" in run(capsys, "train", "lstm.yaml")  # training itself needs no consent
    run(capsys, "evaluate", "runs/lstm-seed0", "--trust", "--episodes", "1")
    sb3_zip(RunFolder("runs/lstm-seed0").last)
    for words in (["evaluate", "runs/lstm-seed0"], ["train", "--resume", "runs/lstm-seed0"]):
        message = refused(capsys, *words)
        assert "lstm-seed0/last.zip is a pickle of Stable-Baselines3" in message and "--trust" in message
        assert not owned()
    refused(capsys, "evaluate", "runs/lstm-seed0", "--trust")
    assert owned()  # the payload works: it is the question that keeps it from running


def test_pickled_behaviors_in_a_config_are_not_loaded_unasked(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sb3_zip(Path("evil.zip"))
    Path("statistics.pkl").write_bytes(pickle.dumps(Payload()))
    texts = ["sb3:ppo:evil.zip=3", "sb3:sac:evil.zip:statistics.pkl"]
    config = {**OFFLINE, "dataset": {"collect": {"episodes": 3, "behaviors": texts}}}
    Path("foreign.yaml").write_text(yaml.safe_dump(config))
    message = refused(capsys, "train", "foreign.yaml")
    assert all(text in message for text in texts) and not owned()
    refused(capsys, "train", "foreign.yaml", "--trust")
    assert owned()


def test_an_override_is_consent_to_its_own_key_only(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("foreign.yaml").write_text(yaml.safe_dump(foreign("environment.id")[1]))
    for words in (["--environment.kwargs", "{delay: 3}"], ["--environment.wrappers", "[]"], ["--seed", "1"]):
        assert "would run code" in refused(capsys, "train", "foreign.yaml", *words)
    assert not owned()


@pytest.mark.parametrize("name", packaged_configs())
def test_packaged_configs_run_no_programs(name: str) -> None:
    assert programs(find_config(name, [])[1]) == []


def test_words_for_collect_in_a_file_are_searched_as_collect_reads_them() -> None:
    assert collect_programs(["--env", "CartPole-v1", "--behavior", "random=2", "--behavior=checkpoint:x"]) == []
    found = collect_programs(["--env=a:X-v0", "--behavior", "sb3:ppo:x.zip", "--behavior=b:c=2", "--steps", "5"])
    assert [each.place for each in found] == ["environment.id", "--behavior", "--behavior"]
    for words in (["--import", "stranger", "--env", "CartPole-v1"], ["--env=CartPole-v1", "--import=stranger"]):
        assert [each.effect for each in collect_programs(words)] == ["imports runs the module stranger"]


# What is data -------------------------------------------------------------------------------------------------


def evil_checkpoint(path: Path, kind: str, header: bool = False) -> None:
    save_checkpoint(path, kind, {}, {})
    buffer = io.BytesIO()
    torch.save({"policy": Payload()}, buffer)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    parts["tensors.pt"] = buffer.getvalue()
    if header:
        parts["header.json"] = pickle.dumps(Payload())
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def load_checkpoint_of(kind: str, header: bool = False) -> None:
    evil_checkpoint(Path("evil.zip"), kind, header)
    if kind == "VecNormalize":
        load_normalization("evil.zip", None, training=False)  # type: ignore[arg-type]  # refused before it is wrapped
    elif kind == "GTrXLPPO":
        GTrXLPPO.load("evil.zip")
    else:
        DecisionTransformer.load("evil.zip")


def load_config() -> None:
    Path("evil.yaml").write_text(f"agent: !!python/object/apply:pathlib.Path.touch [{Path('owned').absolute()}]\n")
    read_experiment(Path("evil.yaml"))


def load_folder() -> None:
    episode = {"observations": np.zeros((3, 2)), "actions": np.zeros(2, np.int64), "rewards": np.zeros(2)}
    load_trajectories([episode]).save("folder")
    np.save("folder/rewards.npy", np.array([Payload(), Payload()], dtype=object), allow_pickle=True)
    load_trajectories("folder")


def load_hdf5() -> None:
    content = np.void(pickle.dumps(Payload()))
    with h5py.File("evil.hdf5", "w") as file:
        for key in ("observations", "actions", "rewards", "terminals"):
            file[key] = np.array([content] * 4)
            file[key].attrs["pickle"] = content
    load_trajectories("evil.hdf5")


def load_npz() -> None:
    arrays = {key: np.array([Payload()] * 4, dtype=object) for key in ("observations", "actions", "rewards")}
    np.savez("evil.npz", allow_pickle=True, terminals=np.zeros(4), **arrays)
    load_trajectories("evil.npz")


def load_buffer() -> None:
    Path("evil.pkl").write_bytes(pickle.dumps(Payload()))
    load_trajectories("evil.pkl")


def load_huggingface() -> None:
    Path("evil").mkdir()
    Path("evil/config.json").write_text(json.dumps({"model_type": "decision_transformer"}))
    torch.save({"encoder": Payload()}, "evil/pytorch_model.bin")
    DecisionTransformer.from_huggingface("evil", 1.0, device="cpu")


def load_minari() -> None:
    Path("evil/data").mkdir(parents=True)
    space = {"type": "Box", "class_path": "stranger.Wrapper", "dtype": "float32", "shape": [2], "low": [0, 0]}
    spec = {"id": "x", "entry_point": "stranger:Wrapper", "additional_wrappers": [], "kwargs": {}}
    metadata = {"total_episodes": 1, "total_steps": 2, "data_format": "hdf5", "dataset_id": "evil/x-v0"}
    metadata |= {
        "observation_space": json.dumps(space),
        "action_space": json.dumps(space),
        "env_spec": json.dumps(spec),
    }
    Path("evil/data/metadata.json").write_text(json.dumps(metadata))
    with h5py.File("evil/data/main_data.hdf5", "w") as file:
        file["episode_0/rewards"] = np.array([np.void(pickle.dumps(Payload()))] * 2)
    load_trajectories("evil")


DATA: dict[str, Callable[[], None]] = {
    "GTrXLPPO": lambda: load_checkpoint_of("GTrXLPPO"),
    "DecisionTransformer": lambda: load_checkpoint_of("DecisionTransformer"),
    "normalization": lambda: load_checkpoint_of("VecNormalize"),
    "header": lambda: load_checkpoint_of("GTrXLPPO", header=True),
    "config": load_config,
    "trajectories": load_folder,
    "D4RL": load_hdf5,
    "Minari": load_minari,
    "npz": load_npz,
    "buffer": load_buffer,
    "Hugging Face": load_huggingface,
}


@pytest.mark.parametrize("kind", DATA)
def test_a_payload_in_data_is_refused_and_never_runs(work: Path, kind: str) -> None:
    with pytest.raises((CheckpointError, ConfigError, DataError)):
        DATA[kind]()
    assert not owned()
    pickle.loads(pickle.dumps(Payload()))
    assert owned()  # the payload works


def test_an_exported_policy_is_data_as_onnx_and_a_program_as_pt2() -> None:
    words = ["--env", "CartPole-v1", "--behavior"]
    assert not collect_programs([*words, "export:policy.onnx=2"]) and not collect_programs([*words, "export:a.onnx"])
    for text in ("export:policy.pt2", "export:policy.pt2=.onnx"):
        assert "may run code" in collect_programs([*words, text])[0].effect
