"""What TensorBoard shows of a run besides its curves."""

from pathlib import Path

from stable_baselines3.common.logger import configure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rltransformers.training.run_card import METRICS, write_run_card


def test_tensorboard_shows_the_config_and_its_settings_and_the_csv_does_not(tmp_path: Path) -> None:
    logger = configure(str(tmp_path), ["csv", "tensorboard"])
    write_run_card(logger, {"agent": "gtrxl_ppo", "seed": 3, "train": {"fast": True}, "wrappers": ["History"]})
    logger.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    (tag,) = [tag for tag in events.Tags()["tensors"] if tag.startswith("config")]
    text = events.Tensors(tag)[0].tensor_proto.string_val[0].decode()
    assert text.splitlines()[0] == "    agent: gtrxl_ppo" and "    - History" in text.splitlines()
    experiment = events.summary_metadata["_hparams_/experiment"].plugin_data.content
    assert all(metric.encode() in experiment for metric in METRICS)
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert all(word in content for word in (b"agent", b"gtrxl_ppo", b"train.fast", b"seed"))
    assert (tmp_path / "progress.csv").read_text() == ""
