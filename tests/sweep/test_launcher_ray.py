"""The launcher `ray` on a real local cluster: its workers, lost nodes, and a command that does not wait."""

import json
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import is_alive, load_records, load_records_by_act, wait_until
from sampling import full

from attnlab.store.atomic_files import read_json_object

installed = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install .[ray]")
HEADS = ("+experiment=heads", "arms=[two,four]", "match=none", "controlled=[]")
LEAVE = "hydra.launcher.wait=false"
FAKE_HOST = "import os, socket\nsocket.gethostname = lambda: os.environ.get('FAKE_HOST', 'node1')\n"
CLUSTER = """
import ray
address = ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
    logging_level="ERROR", object_store_memory=10**8).address_info["gcs_address"]
print(address, flush=True)
input()
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Create a home folder for Ray's cluster tokens, instead of the tester's own."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def cluster(home) -> str:
    """Start a cluster with two cores, no GPU and a token; yield its address."""
    command = [sys.executable, "-c", CLUSTER]
    environment = {**os.environ, "HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        address = process.stdout.readline().strip()
        assert address, "Ray did not start"
        yield address
        process.communicate("\n", timeout=30)


@pytest.fixture
def on_ray(attnlab, home, cluster):
    attnlab.environment["HOME"] = str(home)
    attnlab.line = ["hydra/launcher=ray", f"hydra.launcher.address={cluster}"]
    return attnlab


def list_workers(on_ray) -> dict[int, str]:
    """Map the process id of each worker to its host."""
    files = on_ray.folder.glob("runs/work/*/workers/[!.]*.json")
    return {state["pid"]: state["host"] for state in map(read_json_object, files) if state}


@pytest.mark.rare
@installed
@pytest.mark.timeout(600)
def test_command_waits_or_is_left_and_trains_each_run_once_with_the_results_of_the_pool(on_ray):
    sweep = (*HEADS, "model.act=gate", "looks=[2,4]", "seeds=null", "claims.0.threshold=0.081")
    status, out, err = on_ray(*sweep, *on_ray.line, LEAVE)
    assert status == 0, err
    assert "submitted: this command runs in the background on " in out
    wait_until(lambda: len(on_ray.load_attempts()) == 2, 90)
    status, out, _ = on_ray(*sweep, *on_ray.line, LEAVE)
    assert "nothing submitted: this command runs already in the background on " in out
    pid = out.splitlines()[-1].removeprefix("stop: kill ")
    assert (status, is_alive(pid)) == (0, True)
    (on_ray.folder / "open").touch()
    wait_until(lambda: not is_alive(pid), 200)
    results = load_records(on_ray.folder)
    assert len(on_ray.load_attempts()) == len(results) == 8
    [left] = (on_ray.folder / "reports").glob("*/report.json")
    reports = [json.loads(left.read_text())]
    for line in (on_ray.line, ()):
        (on_ray.folder / "runs").rename(on_ray.folder / f"runs_{len(line)}")
        (on_ray.folder / "reports").rename(on_ray.folder / f"reports_{len(line)}")
        status, out, err = on_ray(*sweep, *line)
        assert status == 0, out + err
        assert "report: reports/heads" in out
        assert load_records(on_ray.folder) == results
        reports.append(json.loads(left.read_text()))
    assert [each["verdict"] for each in reports] == [reports[0]["verdict"]] * 3
    assert [each["runs"] for each in reports] == [reports[0]["runs"]] * 3


@pytest.mark.rare
@installed
@pytest.mark.timeout(600)
def test_failures_are_recorded_and_a_killed_worker_is_replaced(on_ray):
    process = on_ray.start(
        "+experiment=ends", "arms=[train,kill,crash,resume]", "sweep.slots=1", *on_ray.line
    )
    try:
        wait_until(lambda: list(on_ray.folder.glob("runs/*/last.ckpt")), 90)
        [worker] = list_workers(on_ray)
        os.kill(worker, signal.SIGKILL)
        out, err = process.communicate(timeout=200)
    finally:
        process.kill()
    assert process.returncode == 1, out + err
    results = load_records_by_act(on_ray.folder)
    assert {act: record["status"] for act, record in results.items()} == {
        "train": "done", "kill": "killed", "crash": "crashed", "resume": "done",
    }  # fmt: skip
    attempts = [act for act, *_ in on_ray.load_attempts()]
    assert [attempts.count(act) for act in ("train", "crash", "resume")] == [1, 1, 2]
    assert "report: reports/ends" in out


@pytest.mark.rare
@full
@installed
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupt_ends_the_workers_and_writes_the_report(on_ray, number):
    line = on_ray.line if number == signal.SIGTERM else ["hydra/launcher=ray"]  # starts its own cluster
    process = on_ray.start("+experiment=ends", "arms=[train,sleep]", *line)
    try:
        wait_until(lambda: len(on_ray.load_attempts()) == 2 and load_records(on_ray.folder), 90)
        workers = list_workers(on_ray)
    finally:
        os.killpg(process.pid, number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    pids = [*workers, *(pid for _, _, pid, *_ in on_ray.load_attempts())]
    wait_until(lambda: not any(map(is_alive, pids)), 10)
    assert [record["status"] for record in load_records(on_ray.folder).values()] == ["done"]
    assert list((on_ray.folder / "reports").glob("*/report.json"))


@pytest.mark.rare
@installed
@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_faulty", [True, False])
def test_faulty_or_lost_node_leaves_its_runs_to_another(on_ray, cluster, is_faulty):
    """The second node is on this machine, under another host name. Unless faulty, its daemon is killed."""
    (on_ray.folder / "sitecustomize.py").write_text(FAKE_HOST)
    on_ray.environment["PYTHONPATH"] += os.pathsep + str(on_ray.folder)
    environment = {**on_ray.environment, "FAKE_HOST": "node2", "RAY_AUTH_MODE": "token"}
    environment |= {"TOY_DEVICE": "none"} if is_faulty else {}
    line = [Path(sys.executable).with_name("ray"), "start", f"--address={cluster}", "--num-cpus=8", "--block"]
    null = subprocess.DEVNULL
    with subprocess.Popen(
        line, env=environment, stdin=null, stdout=null, stderr=null, start_new_session=True
    ) as node:
        try:
            act = "slow" if is_faulty else "gate"
            sweep = ("heads=two,four", "seed=range(6)", f"model.act={act}", "sweep.slots=4")
            process = on_ray.start(*sweep, *on_ray.line, "hydra.launcher.num_cpus=2")
            if not is_faulty:
                wait_until(lambda: "node2" in list_workers(on_ray).values(), 120)
                os.killpg(node.pid, signal.SIGKILL)
                (on_ray.folder / "open").touch()
            out, err = process.communicate(timeout=300)
        finally:
            node.terminate()
    assert process.returncode == 0, out + err
    assert len(re.findall("node2 is in quarantine for this sweep: . runs in a row failed", out)) == is_faulty
    assert [record["status"] for record in load_records(on_ray.folder).values()] == ["done"] * 12


@pytest.mark.rare
@installed
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            ["model.device=toy card"],
            "a worker needs 1 CPU, 1 GPU, but no node of the Ray cluster has that many (largest: 2 CPU, "
            "0 GPU): reduce the resources in hydra.launcher, or add a node",
        ),
        (["heads=two", "hydra.launcher.num_cpus=0"], "hydra.launcher.num_cpus=0: must be above 0"),
        (
            ["compare", "heads=two", "heads=four", LEAVE],
            "hydra.launcher.wait=false: the experiment of this verb ends with the command: write it to a "
            "file in conf/experiment, or remove hydra.launcher.wait",
        ),
    ],
)
def test_invalid_command_is_one_line_and_starts_nothing(on_ray, line, message):
    status, _, err = on_ray(*line, *on_ray.line)
    err = err.replace("8 CPU", "2 CPU")  # of a node of another test, whose end Ray has not noticed
    assert (status, on_ray.load_attempts(), err) == (2, [], f"attnlab: {message}\n")


@pytest.mark.rare
@installed
def test_verb_whose_experiment_is_in_no_file_runs_on_the_cluster(on_ray):
    status, out, err = on_ray("compare", "heads=two", "heads=four", "seed=0,1", *on_ray.line)
    assert (status, len(on_ray.load_attempts())) == (0, 10), out + err  # six of the compute calibration
    assert not [path for path in on_ray.folder.iterdir() if path.name.startswith("tmp")]


def test_missing_library_error_shows_the_install_command(attnlab):
    (attnlab.folder / "sitecustomize.py").write_text("import sys\nsys.modules['ray'] = None\n")
    attnlab.environment["PYTHONPATH"] += os.pathsep + str(attnlab.folder)
    status, out, err = attnlab("heads=two", "hydra/launcher=ray")
    assert (status, out, attnlab.load_attempts()) == (2, "", [])
    assert err == "attnlab: hydra/launcher=ray needs: pip install 'attnlab[ray]'\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("hydra/launcher=rya", "hydra/launcher has no option rya (nearest: ray)"),
        ("+hydra.launcher.adress=x", "hydra.launcher.adress is not an option of this launcher"),
        ("hydra.launcher.wait=false", "hydra.launcher.wait"),
    ],
)
def test_mistyped_launcher_is_a_one_line_error(attnlab, line, message):
    status, _, err = attnlab("heads=two", line)
    assert (status, attnlab.load_attempts()) == (2, [])
    assert err.startswith("attnlab: ")
    assert message in err
    assert err.count("\n") == 1
