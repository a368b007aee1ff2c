"""Tables at the head of the benchmarks follow from the rows."""

from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.harness import Pair, absolute
from docs._tools import summaries, update_docs
from rltransformers.core.errors import ConfigError


def test_the_summary_reads_the_first_row_beside_each_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    pairs = [("loop", "LSTM", 2.0), ("loop", "LSTM", 9.0), ("loop", "CleanRL ppo_trxl", 3.0)]
    rows = [Pair([1.0], [ratio]).row(name, "", "s", peer, "") for name, peer, ratio in pairs]
    harness.report("gtrxl-loop", rows, tmp_path)
    late = [Pair([1.0], [ratio]).row(f"mixer {ratio}", "", "ms", "position 32", "") for ratio in (1.02, 0.98)]
    harness.report("acting-position", late, tmp_path)
    comparison = summaries.Comparison("collecting", "an LSTM", "{} and {}", [("loop", "LSTM"), ("loop", "CleanRL")])
    monkeypatch.setattr(summaries, "SUMMARY", [comparison])
    first, second = summaries.summary(tmp_path)[2:]
    assert first == "| collecting | an LSTM | 2 and 3 |"
    assert second == "| a step at position 4,096 of an episode | position 32, 2 mixers | 0.98 to 1.02 as long |"
    monkeypatch.setattr(summaries, "SUMMARY", [summaries.Comparison("a", "b", "{}", [("loop", "skrl")])])
    with pytest.raises(ConfigError, match="no row 'loop' beside 'skrl'"):
        summaries.summary(tmp_path)


def test_a_median_that_most_seeds_did_not_reach_is_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    note = "ours 3 of 3 after 5 steps; LSTM 1 of 3 after 9 steps, not within 8 steps"
    rows = [Pair([2.0], [60.2]).row("time to learn: cue", "", "s", "LSTM", "", note=note)]
    harness.report("time-to-learn", [*rows, absolute("time to learn: cue, slowest seed", "", "s", [2.0])], tmp_path)
    assert summaries.learning(tmp_path) == [
        "| processor seconds (seeds) | ours | LSTM |", "|---|---|---|", "| cue | 2 (3 of 3) | over 60.2 (1 of 3) |"
    ]  # fmt: skip


def test_missed_targets_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    rows = [absolute("good", "", "s", [1.0], "<= 2"), absolute("bad", "", "s", [3.0], "<= 2")]
    harness.report("startup", rows, tmp_path)
    lines = summaries.targets(tmp_path)
    assert lines[0] == "1 of 2 targets are missed:" and lines[4].startswith("| bad |")
    assert "<summary>The 1 that are reached</summary>" in lines and lines[-3].startswith("| good |")


def test_returns_of_others_stand_beside_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    name = "DT returns: d3rlpy Discrete, drawn"
    rows = [
        absolute(f"{name}, asked for 500", "", "return", [470.0, 480.0], note="d3rlpy 2.8.0, 50 episodes"),
        absolute(f"{name}, target error", "", "RMSE", [30.26], note="d3rlpy 2.8.0, 50 episodes"),
    ]
    harness.report("dt-returns", rows, tmp_path)
    lines = summaries.returns(tmp_path, update_docs.RESULTS)
    assert lines[2] == "| d3rlpy 2.8.0 `Discrete` | drawn | 475 [470, 480] | 30.3 | 2 |"
    assert [line.split(" | ")[0] for line in lines[3:]] == [f"| {title}" for title in summaries.OURS.values()]
