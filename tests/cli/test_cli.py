"""The command line: figures, keys, errors and files."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import hanayo_megatron
from hanayo_megatron.cli import main

KEYS = {
    "schedule",
    "pp",
    "microbatches",
    "stages",
    "makespan",
    "bubble_ratio",
    "own_span_bubble_ratio",
    "closed_form_bubble_ratio",
    "peak_activations",
    "peak_receive_buffers",
    "peak_send_buffers",
    "weight_memory",
    "transfers",
    "compute",
    "wait",
}


def run(capsys, line):
    """Exit code, stdout, stderr."""
    try:
        code = main(line.split())
    except SystemExit as end:
        code = end.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys, line):
    code, out, err = run(capsys, f"{line} --json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_simulate_json(capsys):
    found = run_json(capsys, "simulate --schedule dapple --pp 2 --microbatches 2 --p2p-time 0.5")
    assert found == {
        "schedule": "1f1b",
        "pp": 2,
        "microbatches": 2,
        "stages": 2,
        "makespan": 10,
        "bubble_ratio": 0.4,
        "own_span_bubble_ratio": 0.4,
        "closed_form_bubble_ratio": (2 * 3 + 4 * 0.5) / (6 * 3 + 4 * 0.5),
        "peak_activations": [2, 1],
        "peak_receive_buffers": [1, 2],
        "peak_send_buffers": [2, 1],
        "weight_memory": [1, 1],
        "transfers": 4,
        "compute": [6, 6],
        "wait": [4, 4],
    }


@pytest.mark.parametrize(("waves", "bubble"), [(1, 0.3684), (2, 0.2381), (4, 0.1351), (8, 0.0725)])
def test_hanayo_bubbles(capsys, waves, bubble):
    found = run_json(
        capsys,
        f"simulate --schedule hanayo --pp 8 --microbatches 8 --waves {waves} "
        "--forward-time 1 --backward-time 2",
    )
    assert found.keys() == KEYS
    assert found["bubble_ratio"] <= bubble + 5e-5
    assert found["stages"] == 16 * waves
    assert found["closed_form_bubble_ratio"] == pytest.approx(14 / (24 * waves + 7))
    assert max(found["peak_activations"]) == 8
    assert found["compute"] == [24] * 8
    assert all(
        c + w == found["makespan"] for c, w in zip(found["compute"], found["wait"], strict=True)
    )


def test_times_are_of_a_ranks_share(capsys):
    """Whatever the number of stages, a rank computes M (T_F + T_B)."""
    for options in ("1f1b", "hanayo --waves 1", "hanayo --waves 3"):
        found = run_json(
            capsys,
            f"simulate --pp 2 --microbatches 5 --forward-time 3 --backward-time 4 "
            f"--schedule {options}",
        )
        assert found["compute"] == [35, 35]


def test_simulate_for_people(capsys):
    code, out, _ = run(capsys, "simulate --schedule hanayo --pp 8 --microbatches 8")
    assert code == 0
    assert out.splitlines()[:5] == [
        "hanayo: 8 ranks, 8 microbatches, 16 stages",
        "  makespan   38; no order of the same work is below 34.5",
        "  bubble     36.84% of the step, 36.84% of a rank's own span (the worst rank's)",
        "  formula    45.16% of the step, an approximation (Hanayo, formula (1); for M = P)",
        "  transfers  224",
    ]
    assert len(out.splitlines()) == 5 + 2 + 8


def test_memory_limit_shapes_the_schedule_or_is_an_error(capsys):
    line = "simulate --pp 4 --microbatches 8 --memory-limit 3 --schedule"
    assert max(run_json(capsys, f"{line} hanayo")["peak_activations"]) <= 3
    assert run_json(capsys, f"{line} hanayo")["closed_form_bubble_ratio"] is None
    code, out, err = run(capsys, f"{line} gpipe")
    assert (code, out) == (2, "")
    assert "holds 8 M_a on rank 0, more than the memory limit of 3 M_a" in err


def test_compare_sorts_by_makespan_and_names_the_shortest(capsys):
    line = "compare --schedule gpipe hanayo --pp 8 --microbatches 8 --waves 1 2"
    found = run_json(capsys, line)
    assert [(r["schedule"], r["stages"]) for r in found] == [
        ("hanayo", 32),
        ("hanayo", 16),
        ("1f1b", 8),
        ("gpipe", 8),
    ]
    makespans = [r["makespan"] for r in found]
    assert makespans == sorted(makespans)
    assert all(r.keys() == KEYS for r in found)
    _, out, _ = run(capsys, line)
    rows = out.splitlines()
    assert [row.split()[0] for row in rows[:5]] == ["schedule", "hanayo", "hanayo", "1f1b", "gpipe"]
    assert {"makespan", "activations", "weights"} <= set(rows[0].replace("(", " ").split())
    assert rows[-1] == (
        "Shortest is hanayo: 8 ranks, 8 microbatches, 32 stages; 30.00% less time than plain 1f1b."
    )


def test_compare_says_when_plain_1f1b_is_best(capsys):
    """With slow links the many transfers of waves cost more than their bubbles save."""
    line = "compare --schedule hanayo --pp 4 --microbatches 64 --waves 4 --p2p-time 1"
    _, out, _ = run(capsys, line)
    assert out.splitlines()[1].startswith("1f1b")
    assert out.splitlines()[-1].startswith("Plain 1f1b is the best choice here")


def test_compare_without_names_has_all_schedules(capsys):
    found = run_json(capsys, "compare --pp 4 --microbatches 8")
    listed = run_json(capsys, "list")
    assert len(listed) >= 15
    assert {r["schedule"] for r in found} == {entry["schedule"] for entry in listed}


def test_compare_leaves_out_what_does_not_fit(capsys):
    line = "compare --schedule gpipe hanayo --pp 4 --microbatches 8 --memory-limit 3"
    code, out, err = run(capsys, line)
    assert code == 0
    assert [row.split()[0] for row in out.splitlines() if row] == ["schedule", "hanayo", "Shortest"]
    left_out = [line.split(" on rank ")[0] for line in err.splitlines()]
    assert left_out == [
        "left out: schedule 'gpipe' holds 8 M_a",
        "left out: schedule '1f1b' holds 4 M_a",
    ]
    code, out, err = run(
        capsys, "compare --schedule gpipe --pp 4 --microbatches 8 --memory-limit 3"
    )
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == "hanayo-megatron: no schedule is left to compare"


def test_costs_file(capsys, tmp_path):
    path = tmp_path / "costs.json"
    path.write_text('{"forward": 2, "backward": 3, "weight_memory": 10, "activation_memory": 2}')
    line = f"simulate --schedule 1f1b --pp 2 --microbatches 2 --costs {path}"
    assert run_json(capsys, line)["makespan"] == 15
    assert run_json(capsys, f"{line} --forward-time 1")["makespan"] == 12
    _, out, _ = run(capsys, f"compare --schedule 1f1b --pp 2 --microbatches 2 --costs {path}")
    assert out.splitlines()[0].split()[-1] == "memory"
    assert out.splitlines()[1].split()[-1] == "14"


def test_a_backward_time_alone_is_split_in_halves(capsys, tmp_path):
    module = tmp_path / "split_for_test.py"
    module.write_text(
        "from hanayo_megatron.schedule import Action, Kind, Schedule, register_schedule\n"
        "from hanayo_megatron.schedule.placement import linear\n"
        "@register_schedule('split-for-test')\n"
        "def split(spec):\n"
        "    order = tuple(Action(0, Kind(k), 0) for k in 'FIW')\n"
        "    return Schedule('split-for-test', linear(1), 1, (order,))\n"
    )
    line = (
        "-m hanayo_megatron.cli simulate --schedule split-for-test --pp 1 --microbatches 1 --json "
        "--pipeline-schedule-module split_for_test"
    )
    for options, makespan in (
        ("--backward-time 4", 5),
        ("--backward-time 4 --input-time 3", 5),
        ("--backward-time 4 --input-time 3 --weight-time 5", 9),
        ("--input-time 3", 5),
    ):
        done = subprocess.run(
            [sys.executable, *line.split(), *options.split()],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
            env={"PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"},
        )
        assert json.loads(done.stdout)["makespan"] == makespan, options


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "the following arguments are required: COMMAND"),
        ("draw", "invalid choice: 'draw'"),
        ("simulate --pp 2", "the following arguments are required: --schedule"),
        ("simulate --schedule 1f1b --microbatches 2", "--pp is missing"),
        ("simulate --schedule 1f1b --pp 2", "--microbatches is missing"),
        ("simulate --schedule hanay --pp 2 --microbatches 2", "did you mean 'hanayo'?"),
        ("simulate --schedule 1f1b --pp 0 --microbatches 2", "pp must be a whole number"),
        ("simulate --schedule 1f1b --pp 2.5 --microbatches 2", "argument --pp: invalid int"),
        ("simulate --schedule 1f1b --pp 2 --microbatches 2 --waves 0", "waves must be a whole"),
        ("simulate --schedule 1f1b --pp 2 --microbatches 2 --p2p-time -1", "--p2p-time: -1 is not"),
        ("simulate --schedule 1f1b --pp 2 --microbatches 2 --p2p-time nan", "--p2p-time: nan is"),
        ("simulate --schedule 1f1b --pp 2 --microbatches 2 --p2p-time x", "--p2p-time: invalid"),
        ("simulate --schedule 1f1b --pp 2 --microbatches 2 --costs no.json", "no.json"),
        (
            "simulate --schedule 1f1b --pp 2 --microbatches 2 --backward-time 1 --input-time 2",
            "--backward-time 1 is less than its part",
        ),
        ("compare --schedule 1f1b hanay --pp 2 --microbatches 2", "did you mean 'hanayo'?"),
        (
            "compare --pp 2 --microbatches 2 --pipeline-schedule-module no_such",
            "cannot be imported",
        ),
        ("plot --pp 2 --microbatches 2", "nothing to plot: give --schedule, --measured or both"),
        ("plot --schedule 1f1b --pp 2 --microbatches 2 --output x.gif", "must end in .svg or .png"),
        ("plot --measured no.json", "no.json"),
        ("verify no.csv", "no.csv"),
        ("simulate --schedule no.csv", "no.csv"),
        ("export --schedule 1f1b --pp 2 --microbatches 2 --output x.txt", "must end in .csv"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(capsys, line, message):
    code, out, err = run(capsys, line)
    assert (code, out) == (2, "")
    assert err.startswith("hanayo-megatron: ")
    assert err.count("\n") == 1
    assert message in err


def test_costs_file_errors_name_the_field(capsys, tmp_path):
    path = tmp_path / "costs.json"
    line = f"simulate --schedule 1f1b --pp 2 --microbatches 2 --costs {path}"
    for content, message in (
        ('{"foward": 1}', "unknown field 'foward'"),
        ('{"stage_times": {"F": {"7": 1}}}', "stage_times.F.7: there is no stage 7"),
        ('{"link_times": {"0->2": 1}}', "link_times.0->2: there is no such link"),
    ):
        path.write_text(content)
        code, _, err = run(capsys, line)
        assert code == 2
        assert message in err
        assert err.count("\n") == 1


def test_plot_writes_both_formats_and_stacks_what_was_measured(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real.json").write_text(
        '{"title": "step 3", "unit": "s", "ranks": 2, "rank_of": [0, 1], "replicas": 1, '
        '"events": [[0, 0.0, 0.5, "0F0"], [1, 0.5, 1.0, "1F0"]]}'
    )
    code, out, _ = run(
        capsys, "plot --schedule 1f1b hanayo --pp 2 --microbatches 3 --measured real.json"
    )
    assert (code, out) == (0, "timeline.svg\ntimeline.png\n")
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
    svg = "{http://www.w3.org/2000/svg}"
    root = ET.parse(tmp_path / "timeline.svg").getroot()
    shown = ["".join(text.itertext()) for text in root.iter(f"{svg}text")]
    titles = [
        "1f1b: 2 ranks, 3 microbatches, 2 stages",
        "hanayo: 2 ranks, 3 microbatches, 4 stages",
        "step 3",
    ]
    assert set(titles) <= set(shown)
    groups = {g.get("id"): len(g.findall(f"{svg}path")) for g in root.iter(f"{svg}g")}
    assert groups["timeline0-F-shade0"] == groups["timeline0-B-shade0"] == 6
    assert groups["timeline1-F-shade1"] == 6
    assert groups["timeline2-F-shade0"] == 2


def test_export_chrome_trace(capsys, tmp_path):
    path = tmp_path / "trace.json"
    code, out, _ = run(capsys, f"export --schedule hanayo --pp 2 --microbatches 2 --output {path}")
    assert (code, out) == (0, f"{path}\n")
    events = json.loads(path.read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 4 * 2 * 2


def test_export_verify_and_simulate_a_csv_file(capsys, tmp_path):
    path = tmp_path / "chimera.csv"
    assert run(capsys, f"export --schedule chimera --pp 4 --microbatches 4 --output {path}") == (
        0,
        f"{path}\n",
        "",
    )
    assert run(capsys, f"verify {path}") == (
        0,
        f"{path} is right: 4 ranks, 4 microbatches, 4 stages, 2 replicas; at most 4 M_a of "
        "activations; its transfers cannot deadlock\n",
        "",
    )
    assert run_json(capsys, f"verify {path}") == {"file": str(path), "faults": None}
    found = run_json(capsys, f"simulate --schedule {path}")
    assert (found["schedule"], found["closed_form_bubble_ratio"]) == (str(path), None)
    assert (found["pp"], found["microbatches"], found["stages"]) == (4, 4, 4)
    assert found["bubble_ratio"] == 0.25
    assert found["peak_activations"] == [3, 4, 4, 3]
    assert found["weight_memory"] == [2, 2, 2, 2]
    code, _, err = run(capsys, f"simulate --schedule {path} --pp 2")
    assert code == 2
    assert "is for 4 ranks, asked for are 2" in err
    _, out, _ = run(capsys, f"compare --schedule {path} --pp 4 --microbatches 4")
    assert out.splitlines()[1].startswith(str(path))


def test_verify_shows_all_faults_and_exits_with_1(capsys, tmp_path):
    path = tmp_path / "wrong.csv"
    path.write_text("0F0,0B0,0F1\n1F0,1B0,1B1\n")
    code, out, err = run(capsys, f"verify {path}")
    assert (code, err) == (1, "")
    assert out.splitlines()[1].split() == ["rank", "position", "cell", "expected"]
    assert {"0B1", "1F1"} <= {line.split()[2] for line in out.splitlines()[2:]}
    assert "1F1" in run(capsys, f"verify {path} --json")[1]
    path.write_text("0F0,0B0\n1F0,1B0\n")
    code, out, _ = run(capsys, f"verify {path} --memory-limit 0.5")
    assert code == 1
    assert "more than the memory limit of 0.5 M_a" in out


def test_list(capsys):
    entries = run_json(capsys, "list")
    assert {"schedule": "1f1b", "aliases": ["dapple"]}.items() <= entries[0].items()
    assert all(entry["summary"] for entry in entries)
    _, out, _ = run(capsys, "list")
    assert [line.split()[0] for line in out.splitlines()[1:]] == [e["schedule"] for e in entries]


def test_start_up_imports_neither_torch_nor_matplotlib():
    code = (
        "import sys; from hanayo_megatron.cli import main; main(sys.argv[1:]);"
        "print(sorted({'torch', 'megatron', 'matplotlib', 'numpy'} & set(sys.modules)))"
    )
    for line in ("list", "compare --pp 4 --microbatches 4"):
        done = subprocess.run(
            [sys.executable, "-c", code, *line.split()], capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-1] == "[]"


def test_a_reader_that_stops_early_is_no_error():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "hanayo_megatron.cli", "list"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_module_in_the_folder_at_work_and_flags_as_in_training(tmp_path):
    """As the installed command starts, with its own folder on the path and not this one."""
    (tmp_path / "own_schedules.py").write_text(
        "from hanayo_megatron.schedule import *\n"
        "@register_schedule('without-backward')\n"
        "def build(spec):\n"
        "    orders = tuple((Action(r, Kind.F, 0),) for r in range(spec.pp))\n"
        "    placement = Placement(spec.pp, tuple(range(spec.pp)))\n"
        "    return Schedule('without-backward', placement, 1, orders)\n"
    )
    command = (
        "import sys; from hanayo_megatron.cli import main; sys.path[0] = '/'; sys.exit(main())"
    )
    options = (
        "--schedule without-backward --pp 2 --microbatches 1 --num-waves 2 "
        "--pipeline-schedule-module own_schedules"
    )
    done = subprocess.run(
        [*(sys.executable, "-c", command, "simulate"), *options.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(hanayo_megatron.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert lines[0] == "hanayo-megatron: schedule 'without-backward' has 2 faults:"
    assert len(lines) == 4
    assert lines[1].split() == ["rank", "position", "cell", "expected"]
