"""A bucket of a local S3 server, and commands that have only this bucket in common."""

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import wait_until
from toys import Command

BUCKET = "bucket"
ACCESS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
URL = f"s3://{BUCKET}/runs"
needs_s3 = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("s3fs", "moto")),
    reason="needs attnlab[s3] and moto",
)
# Python imports it at each start of a process.
SITE = """
import os, socket
socket.gethostname = lambda: os.environ["FAKE_HOST"]
if "STALE_SECONDS" in os.environ:
    from attnlab.store import lease
    lease.STALE_SECONDS = float(os.environ["STALE_SECONDS"])
    lease.HEARTBEAT_SECONDS = lease.STALE_SECONDS / 10
"""


class Host(Command):
    """A command with a host name and folders of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        (folder / name / "site").mkdir(parents=True)
        super().__init__(folder / name)
        (self.folder / "site" / "sitecustomize.py").write_text(SITE)
        path = os.pathsep.join([str(self.folder / "site"), self.environment["PYTHONPATH"]])
        self.environment |= {"PYTHONPATH": path, "FAKE_HOST": name}


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The address of a server that has no data yet."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def is_listening() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    wait_until(is_listening, 60)
    yield f"http://127.0.0.1:{port}"
    server.kill()
    server.wait()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty bucket, which commands and this process find through the environment."""
    import fsspec

    for name, value in {**ACCESS, "AWS_ENDPOINT_URL": s3_server}.items():
        monkeypatch.setenv(name, value)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    system = fsspec.filesystem("s3")
    system.mkdir(BUCKET)
    yield
    system.rm(BUCKET, recursive=True)
