"""What the benchmarks compute from their measurements; the measurements themselves are not tested."""

import csv
import math
import subprocess
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from benchmarks import catalogue, harness, laws, offline, online, past
from benchmarks.harness import Pair, absolute, interleave, meets
from rltransformers.core.errors import ConfigError
from rltransformers.laws.costs import cost
from scripts import benchmark


def test_ratios_are_of_neighboring_runs_and_their_median_decides() -> None:
    row = Pair(ours=[1.0, 2.0, 4.0], peer=[3.0, 5.0, 2.0]).row("a", "b", "ms", "peer", ">= 2", scale=1e3)
    assert (row.ours, row.peer) == (2000.0, 3000.0)
    assert (row.ratio, row.low, row.high, row.repetitions) == (2.5, 0.5, 3.0, 3)
    assert row.met


def test_the_code_of_an_earlier_commit_takes_steps() -> None:
    known = subprocess.run(["git", "cat-file", "-e", online.BEFORE_RINGS], cwd=past.ROOT, capture_output=True)
    if known.returncode:
        pytest.skip("the history of this checkout does not reach back that far")
    with past.checkout(online.BEFORE_RINGS) as folder:
        worker = past.Worker(folder, "eager")
        assert worker.seconds() > 0
        worker.close()


@pytest.mark.parametrize(
    ("value", "target", "expected"), [(2.0, ">= 2", True), (1.9, ">= 2", False), (2.1, "<= 2", False), (9.0, "", None)]
)
def test_a_target_bounds_from_one_side(value: float, target: str, expected: bool | None) -> None:
    assert meets(value, target) is expected


def test_both_sides_run_in_turn_and_warm_up_does_not_count() -> None:
    order: list[str] = []

    def side(name: str, seconds: float) -> float:
        order.append(name)
        return seconds

    pair = interleave(lambda: side("a", 1.0), lambda: side("b", 2.0), repetitions=2, warmup=1)
    assert order == ["a", "b"] * 3
    assert (pair.ours, pair.peer) == ([1.0, 1.0], [2.0, 2.0])


def test_tables_show_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    rows = [
        Pair([0.1], [0.25]).row("loop", "sizes | more", "ms", "peer", ">= 3", scale=1e3),
        absolute("storage", "sizes", "MB", [123400.0], "<= 200000"),
        absolute("aside", "sizes", "MB", [1.0, 2.0, 3.0]),
    ]
    harness.report("gtrxl-loop", rows)
    assert "NOT MET" in capsys.readouterr().out
    with (tmp_path / "gtrxl-loop.csv").open(newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == ["loop", "storage", "aside"]
    whole, short = benchmark.summary(tmp_path), benchmark.targets(tmp_path)
    assert whole[2] == "| loop | sizes / more | 100 ms | 250 (peer) | 2.5 | >= 3 | **no** |"
    assert whole[4] == "| aside | as above | 2 MB [1, 3] |  |  |  |  |"
    assert [line.split(" | ")[0] for line in short[2:]] == ["| loop", "| storage"]
    assert "123,400 MB" in short[3]
    assert short[0] == "| row | ours | baseline | ratio [range] | target | met |"
    assert benchmark.targets(tmp_path, ["storage"]) == [*short[:2], short[3]]
    with pytest.raises(ConfigError, match="no row 'aside' with a target"):
        benchmark.targets(tmp_path, ["aside"])


def test_no_figures_are_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no figures"):
        benchmark.summary(tmp_path)


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5"])
def test_counts_below_one_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        benchmark.main(["gtrxl-loop", "--repetitions", text])
    assert "at least 1" in capsys.readouterr().err


def test_fused_attention_and_products_in_place_are_counted() -> None:
    q, k = torch.randn(1, 2, 8, 4), torch.randn(1, 2, 16, 4)
    fused, _ = cost(lambda: F.scaled_dot_product_attention(q, k, k))
    assert fused == 2 * 2 * (2 * 8 * 16 * 4)
    in_place, _ = cost(lambda: torch.zeros(2, 3, 5).baddbmm_(torch.randn(2, 3, 4), torch.randn(2, 4, 5)))
    assert in_place == 2 * 2 * 3 * 4 * 5


def test_kept_bytes_count_each_storage_once() -> None:
    x = torch.randn(100, requires_grad=True)
    _, kept = cost(lambda: x * x)
    assert kept == x.nbytes
    assert math.isclose(cost(lambda: (x * 2).exp())[1], x.nbytes)


@pytest.mark.slow
def test_laws_count_for_every_name_of_their_case(tmp_path: Path) -> None:
    suite = tmp_path / "test_laws.py"
    cases = '["mixer:linear=preset:one-0", "mixer:softmax=preset:two-1"]'
    suite.write_text(f"""import pytest
@pytest.mark.parametrize("n", [0, 1], ids={cases})
def test_law(n): assert n == 0
""")
    assert laws.outcomes(["preset:one", "preset:two", "mixer:linear", "mixer:rare"], suite) == {
        "preset:one": {"test_law": True}, "preset:two": {"test_law": False}, "mixer:linear": {"test_law": True},
        "mixer:rare": {},
    }  # fmt: skip


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert list(harness.versions(["no-such-package-at-all", "torch"])) == ["torch"]


def test_rows_of_other_names_stay_where_some_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    harness.report("rows", [absolute("one", "", "ms", [1.0]), absolute("two", "", "ms", [2.0])], tmp_path)
    harness.report("rows", [absolute("two", "", "ms", [3.0])], tmp_path, keeps=True)
    assert [(row["name"], row["ours"]) for row in read(tmp_path / "rows.csv")] == [("one", "1.0"), ("two", "3.0")]


def test_a_later_run_of_some_rows_leaves_the_others_their_machine_versions_and_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = list(harness.machine())

    def facts(run: str) -> dict[str, str]:
        return {name: f"{name} of {run}" for name in columns}

    def measure(run: str, *names: str) -> None:
        for module in (harness, catalogue):
            monkeypatch.setattr(module, "machine", lambda *program: facts(run))
        harness.report("rows", [absolute(name, "", "ms", [1.0]) for name in names], tmp_path, keeps=True)
        costs, path = [catalogue.Cost(name, 256, 1.0, 2.0, (0.5,), 4.0) for name in names], tmp_path / "cost.csv"
        catalogue.write_costs(costs, path, "", earlier=catalogue.read_costs(path), order=["one", "two", "three"])

    monkeypatch.setattr(harness, "ROOT", tmp_path)
    expected = {"one": facts("first"), "two": facts("second"), "three": facts("third")}
    measure("first", "one", "two", "three")
    measure("second", "two", "three")
    measure("third", "three")
    for file, name in (("rows.csv", "name"), ("cost.csv", "entry")):
        rows = read(tmp_path / file)
        assert {row[name]: {fact: row[fact] for fact in columns} for row in rows} == expected


def test_every_row_says_where_with_what_and_how_it_was_measured() -> None:
    columns = list(harness.machine())
    for path in sorted(benchmark.RESULTS.rglob("*.csv")):
        for row in read(path):
            name = row.get("name") or row["entry"]
            missing = [column for column in columns if not row.get(column)]
            assert not missing, f"{path.name}, {name}: no {', '.join(missing)}"
            program = "scripts/on_gpu.sh" if path.parent.name == "gpu" else "python scripts/benchmark.py"
            assert row["command"].startswith(program), f"{path.name}, {name}: {row['command']}"
            assert "python 3." in row["versions"] and "torch " in row["versions"], f"{path.name}, {name}"


def test_ours_beside_a_decision_transformer_of_others_has_the_size_that_the_rows_name() -> None:
    config = offline.our_model(offline.synthetic(1)).policy.backbone.config
    feed_forward = config.ff_width or 4 * config.width
    sizes = f"{config.layers} layers, width {config.width}, {config.heads} head, FF {feed_forward} ReLU"
    assert offline.SIZES.startswith(sizes)


def test_every_row_below_its_target_is_explained() -> None:
    text = (benchmark.RESULTS.parent / "lab" / "speed.md").read_text()
    reasons = text.partition("\n## Why targets are missed\n")[2].partition("\n## ")[0]
    commands = [name for name in benchmark.COMMANDS if name not in benchmark.ENTRIES]
    missed = {row["name"] for row in benchmark.measured(benchmark.RESULTS, commands) if row["met"] == "False"}
    assert missed
    assert sorted(name for name in missed if f"`{name}`" not in reasons) == []


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_costs_stay_in_the_order_of_the_catalogue(tmp_path: Path) -> None:
    def of(entry: str, flops: float) -> catalogue.Cost:
        return catalogue.Cost(entry, 256, flops, 2.0, (0.5,), 4.0)

    path = tmp_path / "cost.csv"
    catalogue.write_costs([of("a", 1), of("c", 1), of("removed", 1)], path, "sizes")
    earlier = catalogue.read_costs(path)
    catalogue.write_costs([of("b", 2), of("c", 2)], path, "sizes", earlier=earlier, order=["a", "b", "c"])
    assert [catalogue.cost_of(row) for row in catalogue.read_costs(path)] == [of("a", 1), of("b", 2), of("c", 2)]
    assert catalogue.read_costs(tmp_path / "none.csv") == []


def test_entries_that_do_not_exist_are_not_measured() -> None:
    with pytest.raises(SystemExit, match="no entry mixer:nothing"):
        list(catalogue.catalogue(only=["mixer:nothing"]))
