"""A store in a bucket: leases by conditional writes, and results that appear with their files."""

import json
import multiprocessing
import shutil
import sys
import time

import pytest
from buckets import URL, needs_s3
from filelock import Timeout
from processes import change_identity, wait_until
from stored_runs import make_spec, write_spec

from attnlab.errors import InvalidConfig
from attnlab.store import file_names, lease, remote, run_directories
from attnlab.store.guards import digests
from attnlab.store.lease import hold_lease
from attnlab.store.remote_files import RemoteFiles
from attnlab.store.remote_lease import RemoteLease
from attnlab.store.run_schema import RunResult

pytestmark = needs_s3
SPEC = make_spec({"seed": 3})
ID = SPEC.id


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch):
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(lease, "STALE_SECONDS", 2.0)


@pytest.fixture
def open_mirror(bucket, tmp_path):
    def open_(name, writable=True):
        root = remote.open_store(URL, tmp_path / name, writable=writable)
        return root, remote.find_mirror(root)

    return open_


def write_config(root):
    return write_spec(root, SPEC)


def write_result(folder):
    (folder / file_names.WEIGHTS_FILE).write_text("weights")
    (folder / file_names.CURVES_FILE).write_text("curves")
    values = {"status": "done", "seed": 3, "config": {"seed": 3}, "metrics": {"loss": 1.5}}
    result = RunResult(id=ID, files=digests.hash_run_files(folder), **values)
    run_directories.write_run_result(folder, result)


def list_names():
    return set(RemoteFiles(URL).list())


def make_lease(token, process=""):
    owner = {"host": token, "pid": 1, "process": process, "token": token}
    return RemoteLease(RemoteFiles(URL), "folder", owner)


def acquire_once(token, barrier, winners):
    barrier.wait()
    try:
        make_lease(token).acquire(60.0, wait_forever=False)
    except Timeout:
        return
    winners.put(token)


class TestLease:
    def test_one_of_several_processes_creates_a_generation(self, bucket):
        context = multiprocessing.get_context("spawn")
        barrier, winners = context.Barrier(3), context.Queue()
        arguments = [(f"host{i}", barrier, winners) for i in range(3)]
        processes = [context.Process(target=acquire_once, args=each) for each in arguments]
        for process in processes:
            process.start()
        winner = winners.get(timeout=60)
        holder = make_lease(winner)
        holder.generation = 1

        def have_others_given_up():
            holder.renew()
            return not any(process.is_alive() for process in processes)

        wait_until(have_others_given_up, 60)
        assert winners.empty()
        assert {process.exitcode for process in processes} == {0}

    def test_released_lease_is_taken_at_once_and_old_generations_are_removed(self, bucket):
        first, second = make_lease("a"), make_lease("b")
        first.acquire(60.0, wait_forever=True)
        first.release()
        second.acquire(60.0, wait_forever=True)
        assert second.generation == 2
        assert list_names() == {"folder/lease/000002.json"}
        first.release()  # late, as by a process that was suspended
        assert second.describe_successor() is None
        third = make_lease("c")
        third.acquire(0.5, wait_forever=True)
        assert third.generation == 3, "only because the second one is stale"
        assert second.describe_successor() == "c, pid 1"

    def test_lease_of_a_process_that_ended_here_is_taken_at_once(self, bucket):
        make_lease("a", process=change_identity(start="1")).acquire(60.0, wait_forever=True)
        successor = make_lease("b", process=change_identity())
        successor.acquire(60.0, wait_forever=False)
        assert successor.generation == 2

    def test_holder_on_a_deleted_generation_finds_the_newer_one(self, bucket):
        for token in "ab":
            holder = make_lease(token)
            holder.acquire(60.0, wait_forever=True)
            holder.release()
        late = make_lease("late")
        assert not late._create(1), "it was deleted, so that it can be created again"

    def test_lost_answer_to_the_creation_is_recognized(self, bucket):
        mine = make_lease("a")
        mine.files.create("folder/lease/000001.json", mine._format_owner())
        assert mine._create(1)


class TestMirror:
    def test_result_appears_with_its_files_in_another_mirror(self, open_mirror):
        root, _ = open_mirror("a")
        folder = write_config(root)
        with hold_lease(folder):
            write_result(folder)
            assert f"{ID}/run.json" not in list_names()
        other, _ = open_mirror("b", writable=False)
        assert run_directories.is_done(other / ID)
        assert (other / ID / file_names.CURVES_FILE).read_text() == "curves"
        assert not (other / ID / file_names.WEIGHTS_FILE).exists()
        result = run_directories.load_run_result(other / ID)
        assert digests.find_broken_files(other / ID, result, max_bytes=100) == {}
        assert not (other / ID / file_names.WEIGHTS_FILE).exists(), "observers download no weights"
        assert digests.find_broken_files(other / ID, result) == {}
        assert (other / ID / file_names.WEIGHTS_FILE).read_text() == "weights"

    def test_crash_before_the_result_is_uploaded_leaves_none(self, open_mirror, monkeypatch):
        root, _ = open_mirror("a")
        folder = write_config(root)
        upload = RemoteFiles.upload

        def fail_at_result(self, path, name):
            if name.endswith("run.json"):
                raise ConnectionError("the network is gone")
            upload(self, path, name)

        monkeypatch.setattr(RemoteFiles, "upload", fail_at_result)
        with pytest.raises(ConnectionError), hold_lease(folder):
            write_result(folder)
        assert f"{ID}/{file_names.WEIGHTS_FILE}" in list_names()
        other, _ = open_mirror("b")
        assert run_directories.load_run_result(other / ID) is None
        monkeypatch.setattr(RemoteFiles, "upload", upload)
        lease.upload_results(root)
        other, _ = open_mirror("b")
        assert run_directories.is_done(other / ID)

    def test_checkpoint_is_uploaded_while_the_run_trains_and_continued_elsewhere(self, open_mirror):
        root, _ = open_mirror("a")
        folder = write_config(root)
        with hold_lease(folder):
            (folder / "last.ckpt").write_text("step 5")
            wait_until(lambda: f"{ID}/last.ckpt" in list_names())
        other, _ = open_mirror("b")
        assert not (other / ID / "last.ckpt").exists(), "only a process that trains needs it"
        with hold_lease(other / ID):
            assert (other / ID / "last.ckpt").read_text() == "step 5"
            (other / ID / "last.ckpt").unlink()
            write_result(other / ID)
        assert f"{ID}/last.ckpt" not in list_names()

    def test_failure_that_is_retried_is_gone_for_others_too(self, open_mirror):
        root, _ = open_mirror("a")
        folder = write_config(root)
        with hold_lease(folder):
            run_directories.write_failure(folder, "crashed", "it broke", time.time())
        other, mirror = open_mirror("b")
        assert run_directories.load_run_result(other / ID).status == "crashed"
        with hold_lease(folder):
            (folder / "run.json").unlink()  # the retry is interrupted
        mirror.refresh()
        assert not (other / ID / "run.json").exists()

    @pytest.mark.parametrize("is_copied", [False, True], ids=["own cache", "copied cache"])
    def test_live_holder_elsewhere_is_waited_for(self, open_mirror, tmp_path, is_copied):
        root, _ = open_mirror("a")
        if is_copied:
            shutil.copytree(tmp_path / "a", tmp_path / "b")
        with hold_lease(write_config(root)):
            other, mirror = open_mirror("b")
            assert mirror.is_held(other / ID, 60.0)
            assert lease.is_held_on_other_host(other / ID)
            with pytest.raises(Timeout), hold_lease(write_config(other), timeout_seconds=1.0):
                pass
        mirror.refresh()
        assert not mirror.is_held(other / ID, 60.0)

    def lose_lease(self, folder, successor):
        with hold_lease(folder):
            successor.acquire(0.1, wait_forever=True)
            write_result(folder)

    def test_holder_that_was_taken_over_exits_and_uploads_nothing(self, open_mirror, monkeypatch, capsys):
        class Exit(BaseException):
            pass

        def exit_(code):
            raise Exit(code)

        monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 1000.0)  # as of a process that is suspended
        monkeypatch.setattr(lease.os, "_exit", exit_)
        root, _ = open_mirror("a")
        folder = write_config(root)
        successor = RemoteLease(RemoteFiles(URL), ID, {"host": "b", "pid": 7, "process": "", "token": "b"})
        with pytest.raises(Exit, match=str(lease.TAKEN_OVER_EXIT_CODE)):
            self.lose_lease(folder, successor)
        assert f"{ID}: taken over by b, pid 7\n" in capsys.readouterr().err
        assert f"{ID}/run.json" not in list_names()

    def test_batches_are_split_as_in_the_checkpoint(self, open_mirror):
        root, _ = open_mirror("a")
        other, _ = open_mirror("b")
        write_config(other)
        folder = write_config(root)
        spec = run_directories.load_run_config(folder)
        run_directories.write_run_config(root, spec.with_provenance(split=4))
        with hold_lease(folder):
            pass
        with hold_lease(other / ID):
            assert run_directories.read_batch_split(other / ID) == 4


class TestErrors:
    def read_error(self, tmp_path, url=URL, writable=True):
        with pytest.raises(InvalidConfig) as caught:
            remote.open_store(url, tmp_path, writable=writable)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def test_bucket_that_is_missing(self, bucket, tmp_path):
        message = self.read_error(tmp_path, "s3://nothing/runs", writable=False)
        assert message == "paths.runs=s3://nothing/runs: bucket not found: create it, or correct its name"

    def test_server_that_cannot_be_reached(self, bucket, tmp_path, monkeypatch):
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        import fsspec

        fsspec.get_filesystem_class("s3").clear_instance_cache()
        assert "check the network" in self.read_error(tmp_path, writable=False)

    def test_no_credentials(self, bucket, tmp_path, monkeypatch):
        import fsspec

        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("HOME", str(tmp_path))
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        assert "set AWS_ACCESS_KEY_ID" in self.read_error(tmp_path)

    def test_server_without_conditional_writes(self, bucket, tmp_path, monkeypatch):
        monkeypatch.setattr(RemoteFiles, "create", RemoteFiles.write)
        assert "the server ignores If-None-Match" in self.read_error(tmp_path)
        remote.open_store(URL, tmp_path, writable=False)

    @pytest.mark.parametrize(
        ("url", "problem"),
        [("gs://b/x", "the protocol gs is not supported"), ("s3://", "no bucket: give s3://BUCKET/PREFIX")],
    )
    def test_url(self, url, problem, tmp_path):
        assert problem in self.read_error(tmp_path, url)

    def test_library_that_is_missing(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "s3fs", None)
        assert "needs: pip install 'attnlab[s3]'" in self.read_error(tmp_path)


def test_index_is_valid_json(open_mirror):
    root, _ = open_mirror("a")
    folder = write_config(root)
    with hold_lease(folder):
        write_result(folder)
    index = json.loads((folder / remote.INDEX_FILE).read_text())
    assert {"run.json", "spec.json", file_names.WEIGHTS_FILE, file_names.CURVES_FILE} <= index.keys()
