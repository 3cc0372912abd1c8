"""Names of the files and folders of a store and of its run directories."""

import re

# Of a store.
MARK_FILE = ".attnlab"
STORE_KIND = "a store of attnlab's runs"  # in the mark
WORK_FOLDER = "work"  # attnlab/sweep/execute/work_folder.py
REFERENCES_FOLDER = "users"  # attnlab/store/guards/run_references.py
PREREGISTRATION_LOG = "declarations.jsonl"  # attnlab/store/guards/preregistrations.py
_NAME = r"(?!\.)[A-Za-z0-9_.@~-]{0,120}"
SHARED_FILE_PATTERN = re.compile(  # of a store in a bucket: files outside runs that hosts share
    rf"{re.escape(PREREGISTRATION_LOG)}|"
    rf"{WORK_FOLDER}/{_NAME}~[0-9a-f]{{8}}(/(workers|quarantine)/{_NAME})?\.json"
)
RUN_ID_PATTERN = re.compile(r"[0-9a-f]{16}")  # the name of a run directory

# Of a run directory.
WEIGHTS_FILE = "model.safetensors"
CURVES_FILE = "curves.parquet"
MAPS_FILE = "attention.npz"
VOCABULARY_FILE = "vocabulary.json"
CHECKPOINT_NAMES = ("last.ckpt", "previous.ckpt")  # of an unfinished run, newest first
TRUNK_CHECKPOINT = "trunk.ckpt"  # the last state that a run shares with runs of larger budgets


def make_file_name(text: str) -> str:
    """Return the text as a name that every file system accepts."""
    return re.sub(r"[^A-Za-z0-9_.@~-]", "_", text).lstrip(".")[:100]
