"""A temporary SLURM cluster whose one node is this machine: three daemons with files in one folder.

It has no accounting, like many small clusters. It needs the programs `slurmctld`, `slurmd` and `munged`, but
no system configuration.
"""

import getpass
import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from processes import wait_until

DAEMONS = ("munged", "slurmctld", "slurmd")
CONF = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=100000
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


class DidNotStart(RuntimeError):
    """A daemon did not start in time; the message has the daemons' output."""


def list_missing_daemons() -> list[str]:
    return [name for name in DAEMONS if _find_program(name) is None]


def _find_program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/local/sbin")


@contextmanager
def start_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Run the cluster; yield the environment variables that its clients need."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o600)
    host = platform.node().partition(".")[0]
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(folder=folder, host=host, ports=_find_free_ports(2), user=getpass.getuser()))
    environment = {"SLURM_CONF": str(conf)}
    munge_arguments = [
        "--foreground", "--force", f"--key-file={folder}/key", f"--socket={folder}/munge.socket",
        f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log",
        f"--seed-file={folder}/munge.seed",
    ]  # fmt: skip
    with ExitStack() as stack:
        _start_daemon(stack, folder, "munged", munge_arguments, environment)
        _wait_for_daemons(lambda: (folder / "munge.socket").exists(), folder)
        _start_daemon(stack, folder, "slurmctld", ["-D", "-c", "-f", str(conf)], environment)
        _start_daemon(stack, folder, "slurmd", ["-D", "-c", "-f", str(conf)], environment)
        _wait_for_daemons(lambda: _is_node_idle(environment), folder)
        try:
            yield environment
        finally:  # a job that outlives its cluster would wait for it
            client_environment = {**os.environ, **environment}
            subprocess.run(
                ["scancel", f"--user={getpass.getuser()}"], env=client_environment, capture_output=True
            )
            queue = ["squeue", "--noheader"]
            _wait_for_daemons(lambda: not subprocess.check_output(queue, env=client_environment), folder)


@contextmanager
def start_cluster_or_skip(folder: Path) -> Iterator[dict[str, str]]:
    """As `start_cluster`; skip the test if SLURM does not start here."""
    with ExitStack() as stack:
        try:
            environment = stack.enter_context(start_cluster(folder))
        except DidNotStart as error:
            pytest.skip(f"SLURM is installed, and did not start here: {error}")
        yield environment


def _start_daemon(
    stack: ExitStack, folder: Path, name: str, arguments: list[str], environment: dict[str, str]
) -> None:
    output = stack.enter_context((folder / f"{name}.out").open("w"))
    process = subprocess.Popen(
        [_find_program(name), *arguments], env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
        stdout=output, stderr=output, start_new_session=True,
    )  # fmt: skip

    def stop() -> None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(stop)


def _is_node_idle(environment: dict[str, str]) -> bool:
    command = ["sinfo", "--noheader", "--format=%T"]
    result = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    return result.stdout.strip() == "idle"


def _wait_for_daemons(condition, folder: Path, seconds: float = 20.0) -> None:
    try:
        wait_until(condition, seconds)
    except AssertionError:
        output = "\n".join(path.read_text()[-2000:] for path in sorted(folder.glob("*.out")))
        raise DidNotStart(output) from None


def _find_free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in sockets]
