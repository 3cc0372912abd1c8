"""Recipes `sweeps/work_*` start workers as their tool and the verb `work` require.

SkyPilot's schema is in a package with fifty dependencies, one of which excludes the pinned click. JobSet's is
in no Python package. These two recipes are compared with the fields listed here, from SkyPilot's page
"SkyPilot YAML" and the reference of jobset.x-k8s.io/v1alpha2.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import slurm_cluster
import yaml
from hydra.types import RunMode
from processes import wait_until
from test_sweeps_files import SWEEPS, compose_config

from attnlab.cli.commands import VERBS, parse_verb_line

RECIPES = sorted(SWEEPS.glob("work_*"))
SCRIPTS = sorted(SWEEPS.glob("*.sh"))
STRING, COUNT = {"type": "string"}, {"type": "integer", "minimum": 1}
NAMES = {"type": "array", "items": STRING, "minItems": 1}
SECONDS = {"h": 3600, "m": 60, "s": 1}


def describe_object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    """Build the JSON schema of an object that has no other keys."""
    return {
        "type": "object",
        "properties": required | optional,
        "required": [*required],
        "additionalProperties": False,
    }


JOB_SET = describe_object(
    {
        "apiVersion": {"const": "jobset.x-k8s.io/v1alpha2"},
        "kind": {"const": "JobSet"},
        "metadata": describe_object({"name": STRING}),
        "spec": describe_object(
            {
                "replicatedJobs": {
                    "type": "array",
                    "items": describe_object(
                        {"name": STRING, "template": describe_object({"spec": {"type": "object"}})},
                        replicas=COUNT,
                    ),
                }
            },
            successPolicy=describe_object({"operator": {"enum": ["All", "Any"]}}, targetReplicatedJobs=NAMES),
            failurePolicy=describe_object(
                {},
                maxRestarts=COUNT,
                rules={
                    "type": "array",
                    "items": describe_object(
                        {
                            "name": {"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
                            "action": {
                                "enum": ["FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"]
                            },
                        },
                        onJobFailureReasons=NAMES,
                        targetReplicatedJobs=NAMES,
                    ),
                },
            ),
        ),
    }
)
SKYPILOT = describe_object(
    {"resources": describe_object(
        {"infra": STRING, "accelerators": {"type": "string", "pattern": "^[A-Z0-9]+:[0-9]+$"}},
        cpus=STRING,
        memory=STRING,
        image_id={"type": "string", "pattern": "^docker:"},
        job_recovery=describe_object({}, max_restarts_on_errors=COUNT),
    ), "run": STRING},
    name=STRING,
    volumes={"type": "object", "additionalProperties": STRING},
)  # fmt: skip


def load_yaml(name: str) -> dict[str, Any]:
    return yaml.safe_load((SWEEPS / name).read_text("utf-8"))


def iterate_leaves(document: Any) -> Iterator[Any]:
    """Yield strings, and lists of strings, of a YAML document."""
    if isinstance(document, dict):
        for value in document.values():
            yield from iterate_leaves(value)
    elif isinstance(document, list) and not all(isinstance(item, str) for item in document):
        for value in document:
            yield from iterate_leaves(value)
    elif isinstance(document, str | list):
        yield document


def read_worker_lines(path: Path) -> list[list[str]]:
    """Return the words after `work` of each worker command in a recipe."""
    if path.suffix == ".yaml":
        leaves = [
            shlex.join(leaf) if isinstance(leaf, list) else leaf
            for leaf in iterate_leaves(load_yaml(path.name))
        ]
    else:
        leaves = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    found = re.findall(r"python -m attnlab work ([^\"\n]*)", "\n".join(leaves))
    return [shlex.split(line) for line in found]


def parse_duration(text: str) -> int:
    """Convert `--for`, as in 2h, or SLURM's hours:minutes:seconds to seconds."""
    if match := re.fullmatch(r"(\d+):(\d\d):(\d\d)", text):
        hours, minutes, seconds = map(int, match.groups())
        return 3600 * hours + 60 * minutes + seconds
    return int(text[:-1]) * SECONDS[text[-1]]


def list_jobs() -> list[dict[str, Any]]:
    """Return the Job of the Kubernetes recipe, and each replicated job of the JobSet as a Job."""
    replicated = load_yaml("work_jobset.yaml")["spec"]["replicatedJobs"]
    jobs = [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": job["name"]},
            "spec": job["template"]["spec"],
        }
        for job in replicated
    ]
    return [load_yaml("work_kubernetes.yaml"), *jobs]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_the_experiment_of_a_recipe_composes(path):
    lines = read_worker_lines(path)
    assert lines
    for line in lines:
        overrides = [word for word in line if "=" in word]
        config = compose_config(overrides, RunMode.MULTIRUN)
        assert (config.size, bool(config.arms)) == ("M", True)


@pytest.mark.skipif("work" not in VERBS, reason="attnlab has no verb `work`")
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_the_flags_of_a_recipe_are_those_of_the_verb(path):
    for line in read_worker_lines(path):
        assert parse_verb_line("work", line)


def test_the_time_limit_of_slurm_leaves_time_to_save_a_checkpoint():
    text = (SWEEPS / "work_slurm.sh").read_text("utf-8")
    [limit] = re.findall(r"^#SBATCH --time=(\S+)$", text, re.M)
    [line] = read_worker_lines(SWEEPS / "work_slurm.sh")
    spare = parse_duration(limit) - parse_duration(line[line.index("--for") + 1])
    assert 300 <= spare <= 1800


def test_every_kubernetes_worker_starts_at_once_and_keeps_a_grace_period():
    for job in list_jobs():
        spec, pod = job["spec"], job["spec"]["template"]["spec"]
        assert spec["completions"] == spec["parallelism"] > 1
        assert pod["terminationGracePeriodSeconds"] >= 60
        assert pod["restartPolicy"] == "Never"  # podFailurePolicy requires it


def test_kubernetes_and_skypilot_use_the_same_image_and_paths():
    pods = [job["spec"]["template"]["spec"] for job in list_jobs()]
    images = {pod["containers"][0]["image"] for pod in pods}
    sky = load_yaml("work_skypilot.yaml")
    assert {f"docker:{image}" for image in images} == {sky["resources"]["image_id"]}
    [mount] = sky["volumes"]
    for pod in pods:
        assert pod["containers"][0]["workingDir"] in sky["run"]
        assert mount in [volume["mountPath"] for volume in pod["containers"][0]["volumeMounts"]]
        assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == sky["volumes"][mount]


@pytest.mark.skipif(not find_spec("kubernetes_validate"), reason="needs the extra `recipes`")
@pytest.mark.parametrize("index", range(3))
def test_jobs_are_valid_for_kubernetes(index):
    import kubernetes_validate

    job = list_jobs()[index]
    kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)
    job["spec"]["parallel"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)


def test_job_set_has_the_documented_fields():
    job_set = load_yaml("work_jobset.yaml")
    jsonschema.validate(job_set, JOB_SET)
    names = {job["name"] for job in job_set["spec"]["replicatedJobs"]}
    assert {*job_set["spec"]["successPolicy"]["targetReplicatedJobs"]} < names


def test_skypilot_task_has_the_documented_fields():
    jsonschema.validate(load_yaml("work_skypilot.yaml"), SKYPILOT)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_script_is_valid_bash(path):
    subprocess.run(["bash", "-n", path], check=True)


def find_shellcheck() -> str | None:
    return shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@pytest.mark.skipif(find_shellcheck() is None, reason="needs the extra `recipes`")
def test_shellcheck_accepts_the_scripts():
    result = subprocess.run([find_shellcheck(), *SCRIPTS], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "")


def write_program(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{body}")
    path.chmod(0o755)


def test_ssh_starts_a_worker_for_each_gpu_of_each_host_without_one(tmp_path):
    """`ssh` runs its command here. `tmux` runs a window's command; its session exists after the first.

    Host two has an open window for GPU 0.
    """
    programs = tmp_path / "programs"
    programs.mkdir()
    write_program(programs, "ssh", 'export HOST="$1"; shift; exec bash -c "$*"\n')
    write_program(programs, "nvidia-smi", "echo 0; echo 1\n")
    write_program(
        programs,
        "tmux",
        f'if [ "$1" = list-windows ]; then [ "$HOST" = one ] || echo gpu0; exit; fi\n'
        f'[ "$1" = new-window ] || mkdir "{tmp_path}/$HOST" || exit 1\n'
        f'[ -d "{tmp_path}/$HOST" ] || exit 1\nbash -c "${{@: -1}}"\n',
    )
    clone = tmp_path / "a clone"
    (clone / ".venv/bin").mkdir(parents=True)
    write_program(
        clone / ".venv/bin", "python", f'echo "$HOST $CUDA_VISIBLE_DEVICES $*" >> {tmp_path}/started\n'
    )
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    subprocess.run([SWEEPS / "work_ssh.sh", "one", "two"], cwd=clone, env=environment, check=True)
    [line] = read_worker_lines(SWEEPS / "work_ssh.sh")
    workers = (("one", 0), ("one", 1), ("two", 1))
    expected = [f"{host} {gpu} -m attnlab work {shlex.join(line)}" for host, gpu in workers]
    assert (tmp_path / "started").read_text().splitlines() == expected


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[dict[str, str]]:
    if missing := slurm_cluster.list_missing_daemons():
        pytest.skip(f"no {', '.join(missing)}: apt install slurm-wlm munge")
    with slurm_cluster.start_cluster_or_skip(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


@pytest.mark.rare
def test_slurm_starts_every_worker_and_requeues_a_preempted_one(cluster, tmp_path):
    """`python` writes its arguments; the first worker waits for SIGTERM, as a worker that trains does."""
    started, ended = tmp_path / "started", tmp_path / "ended"
    write_program(
        tmp_path,
        "python",
        f'trap "echo >> {ended}; exit 143" TERM\n'
        f'echo "$SLURM_ARRAY_TASK_ID $*" >> {started}\n'
        f'[ "$SLURM_ARRAY_TASK_ID" != 0 ] || [ -e {ended} ] || for _ in {{1..600}}; do sleep 0.1; done\n',
    )
    environment = {**os.environ, **cluster, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    on_this_node = ["--gres=none", "--cpus-per-task=1", "--mem=0", f"--output={tmp_path}/log"]
    submit = ["sbatch", "--parsable", *on_this_node, SWEEPS / "work_slurm.sh", "seed=7"]
    job = subprocess.check_output(submit, env=environment, text=True, cwd=tmp_path).strip()

    def read_started() -> list[str]:
        return sorted(started.read_text().splitlines()) if started.exists() else []

    wait_until(lambda: len(read_started()) == 8, 60)
    [line] = read_worker_lines(SWEEPS / "work_slurm.sh")
    words = shlex.join([word for word in line if word != "$@"])
    assert read_started() == [f"{task} -m attnlab work {words} seed=7" for task in range(8)]
    assert not ended.exists()
    subprocess.run(["scontrol", "requeue", f"{job}_0"], env=environment, check=True)
    wait_until(lambda: len(read_started()) == 9, 120)
    assert len(ended.read_text().splitlines()) == 1
    assert read_started()[:2] == [f"0 -m attnlab work {words} seed=7"] * 2
