"""The launcher `ray` on a real local cluster: same run results and recorded failures as the pool."""

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import is_alive, load_records, load_records_by_act, wait_until
from sampling import full

installed = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install .[ray]")
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


@pytest.mark.rare
@installed
def test_ray_stores_the_results_of_the_pool_and_trains_each_run_once(on_ray):
    line = ["heads=two,four", "seed=0,1"]
    status, out, err = on_ray(*line, *on_ray.line)
    assert status == 0, err
    assert "4 runs, 0 done, 4 to train" in out
    assert len({pid for _, _, pid, *_ in on_ray.load_attempts()}) == 4  # a fresh process each
    results = load_records(on_ray.folder)
    status, out, _ = on_ray(*line, *on_ray.line)
    assert (status, len(on_ray.load_attempts())) == (0, 4)
    (on_ray.folder / "runs").rename(on_ray.folder / "elsewhere")
    assert on_ray(*line)[0] == 0
    assert load_records(on_ray.folder) == results


@pytest.mark.rare
@installed
def test_interim_analyses_run_in_sequence(on_ray):
    overrides = ("arms=[two,four]", "match=none", "controlled=[]", "looks=[2,4,6]", "seeds=null")
    status, out, err = on_ray("+experiment=heads", *overrides, *on_ray.line)
    assert status == 0, err
    assert "Stopped at interim analysis 1 of 3, 2 paired seeds." in " ".join(out.split())
    assert sorted(int(seed) for _, seed, *_ in on_ray.load_attempts()) == [0, 0, 1, 1]


@pytest.mark.rare
@installed
def test_killed_and_lost_workers_are_recorded_and_other_runs_finish(on_ray):
    status, out, _ = on_ray("+experiment=ends", "arms=[train,kill,crash,lost]", *on_ray.line)
    assert status == 1
    results = load_records_by_act(on_ray.folder)
    assert {act: record["status"] for act, record in results.items()} == {
        "train": "done",
        "kill": "killed",
        "crash": "crashed",
        "lost": "killed",
    }
    assert results["kill"]["failure"]["message"].startswith("signal 9 (SIGKILL) killed the worker process")
    assert "Ray lost the worker or its node" in results["lost"]["failure"]["message"]
    assert len(on_ray.load_attempts()) == 8, "two retries of each infrastructure failure"
    assert "report: reports/ends" in out


@pytest.mark.rare
@full
@installed
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupt_ends_the_runs_and_writes_the_report(on_ray, number):
    line = on_ray.line if number == signal.SIGTERM else ["hydra/launcher=ray"]  # starts its own cluster
    process = on_ray.start("+experiment=ends", "arms=[train,sleep]", *line)
    try:
        wait_until(lambda: len(on_ray.load_attempts()) == 2 and load_records(on_ray.folder), 40)
    finally:
        os.killpg(process.pid, number)
        _, err = process.communicate(timeout=40)
    assert process.returncode == 128 + number, err
    wait_until(lambda: not any(is_alive(pid) for _, _, pid, *_ in on_ray.load_attempts()), 5)
    assert [record["status"] for record in load_records(on_ray.folder).values()] == ["done"]
    assert list((on_ray.folder / "reports").glob("*/report.json"))


@pytest.mark.rare
@installed
def test_resources_that_no_node_has_are_rejected_at_once(on_ray):
    status, _, err = on_ray("model.device=toy card", *on_ray.line)
    assert (status, on_ray.load_attempts()) == (2, [])
    assert err == (
        "attnlab: a run needs 1 CPU, 1 GPU, but no node of the Ray cluster has that many (largest: 2 CPU, "
        "0 GPU): reduce the resources in hydra.launcher, or add a node\n"
    )


@pytest.mark.rare
@installed
@pytest.mark.timeout(600)
def test_command_that_does_not_wait_is_carried_out_by_an_actor_of_the_cluster(on_ray):
    sweep = ("+experiment=heads", "arms=[two,four]", "match=none", "controlled=[]", "model.act=gate")
    sweep += ("looks=[2,4]", "seeds=null", "claims.0.threshold=0.081")
    status, out, err = on_ray(*sweep, *on_ray.line, "hydra.launcher.wait=false")
    assert status == 0, err
    assert "submitted 4 runs: this command runs as the Ray actor attnlab-" in out
    wait_until(lambda: len(on_ray.load_attempts()) == 2, 60)
    status, out, _ = on_ray(*sweep, *on_ray.line, "hydra.launcher.wait=false")
    assert status == 0
    assert "nothing submitted: this command runs already as the Ray actor attnlab-" in out
    pid = out.splitlines()[-1].removeprefix("stop: kill ")
    assert is_alive(pid)
    (on_ray.folder / "open").touch()
    wait_until(lambda: not is_alive(pid), 200)
    results = load_records(on_ray.folder)
    assert len(on_ray.load_attempts()) == len(results) == 8
    for name in ("runs", "reports"):
        (on_ray.folder / name).rename(on_ray.folder / f"left_{name}")
    assert on_ray(*sweep)[0] == 0  # by the pool, which waits
    assert load_records(on_ray.folder) == results
    left, waited = (
        json.loads(file.read_text())
        for name in ("left_reports", "reports")
        for file in (on_ray.folder / name).glob("*/report.json")
    )
    assert [left["verdict"], left["runs"]] == [waited["verdict"], waited["runs"]]


@pytest.mark.rare
@installed
@pytest.mark.timeout(600)
def test_faulty_node_is_put_in_quarantine_and_its_runs_succeed_on_another(on_ray, cluster):
    line = [Path(sys.executable).with_name("ray"), "start", f"--address={cluster}", "--num-cpus=8", "--block"]
    environment = {**on_ray.environment, "TOY_DEVICE": "none", "RAY_AUTH_MODE": "token"}
    null = subprocess.DEVNULL
    with subprocess.Popen(line, env=environment, stdin=null, stdout=null, stderr=null) as node:
        try:
            sweep = ("heads=two,four", "seed=range(6)", "model.act=slow")
            status, out, err = on_ray(*sweep, *on_ray.line, "hydra.launcher.num_cpus=2")
        finally:
            node.terminate()
    assert status == 0, out + err
    assert (
        out.count("is in quarantine for this sweep: 3 runs in a row failed on this host, the last with: ")
        == 1
    )
    assert [record["status"] for record in load_records(on_ray.folder).values()] == ["done"] * 12


@installed
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["hydra/launcher=ray"], "hydra.launcher.wait=false: a local cluster ends with the command: set "),
        ([], "hydra.launcher.wait"),
    ],
)
def test_command_that_cannot_be_left_is_refused_before_a_run(attnlab, line, message):
    status, _, err = attnlab("heads=two", *line, "hydra.launcher.wait=false")
    assert (status, attnlab.load_attempts(), err.count("\n")) == (2, [], 1)
    assert err.startswith("attnlab: ")
    assert message in err


@pytest.mark.parametrize(("launcher", "module"), [("ray", "ray"), ("slurm", "submitit")])
def test_missing_launcher_library_error_shows_the_install_command(attnlab, launcher, module):
    (attnlab.folder / "sitecustomize.py").write_text(f"import sys\nsys.modules[{module!r}] = None\n")
    attnlab.environment["PYTHONPATH"] += os.pathsep + str(attnlab.folder)
    status, out, err = attnlab("heads=two", f"hydra/launcher={launcher}")
    assert (status, out, attnlab.load_attempts()) == (2, "", [])
    assert err == f"attnlab: hydra/launcher={launcher} needs: pip install 'attnlab[{launcher}]'\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("hydra/launcher=rya", "hydra/launcher has no option rya (nearest: ray)"),
        ("+hydra.launcher.adress=x", "hydra.launcher.adress is not an option of this launcher"),
    ],
)
def test_mistyped_launcher_is_a_one_line_error(attnlab, line, message):
    status, _, err = attnlab("heads=two", line)
    assert (status, attnlab.load_attempts()) == (2, [])
    assert err.startswith(f"attnlab: {message}")
    assert err.count("\n") == 1
