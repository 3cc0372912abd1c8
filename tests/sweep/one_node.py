"""A SLURM cluster of one node, this machine: three daemons in a folder of their own, for as long as asked.

No accounting, as on many a small cluster. Needs `slurmctld`, `slurmd`, `munged`, and no set-up of the system.
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
    """With what the daemons said."""


def missing() -> list[str]:
    return [name for name in DAEMONS if _found(name) is None]


def _found(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/local/sbin")


@contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """What has to be in the environment of those who use the cluster."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o600)
    host = platform.node().partition(".")[0]
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(folder=folder, host=host, ports=_free_ports(2), user=getpass.getuser()))
    environment = {"SLURM_CONF": str(conf)}
    munge = [
        "--foreground", "--force", f"--key-file={folder}/key", f"--socket={folder}/munge.socket",
        f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log",
        f"--seed-file={folder}/munge.seed",
    ]  # fmt: skip
    with ExitStack() as stack:
        _start(stack, folder, "munged", munge, environment)
        _wait(lambda: (folder / "munge.socket").exists(), folder)
        _start(stack, folder, "slurmctld", ["-D", "-c", "-f", str(conf)], environment)
        _start(stack, folder, "slurmd", ["-D", "-c", "-f", str(conf)], environment)
        _wait(lambda: _idle(environment), folder)
        try:
            yield environment
        finally:  # a job that outlived its cluster would wait for it
            asker = {**os.environ, **environment}
            subprocess.run(["scancel", f"--user={getpass.getuser()}"], env=asker, capture_output=True)
            _wait(lambda: not subprocess.check_output(["squeue", "--noheader"], env=asker), folder)


def _start(stack: ExitStack, folder: Path, name: str, line: list[str], environment: dict[str, str]) -> None:
    output = stack.enter_context((folder / f"{name}.out").open("w"))
    process = subprocess.Popen(
        [_found(name), *line], env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=output,
        stderr=output, start_new_session=True,
    )  # fmt: skip

    def end() -> None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(end)


def _idle(environment: dict[str, str]) -> bool:
    line = ["sinfo", "--noheader", "--format=%T"]
    asked = subprocess.run(line, env={**os.environ, **environment}, capture_output=True, text=True)
    return asked.stdout.strip() == "idle"


def _wait(until, folder: Path, seconds: float = 20.0) -> None:
    try:
        wait_until(until, seconds)
    except AssertionError:
        told = "\n".join(path.read_text()[-2000:] for path in sorted(folder.glob("*.out")))
        raise DidNotStart(told) from None


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
