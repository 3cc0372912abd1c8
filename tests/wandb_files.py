"""W&B's offline files, read through wandb's own message classes."""

from contextlib import suppress

from attnlab.training.loggers import files


def records(path):
    """The messages of a .wandb file.

    Ends W&B's service of this process first: a finished run's last records may still be with it.
    """
    import wandb

    with suppress(ConnectionError):
        wandb.teardown()

    yield from files.records(path.read_bytes())


def history(path):
    return [
        {".".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
        for record in records(path)
        if record.WhichOneof("record_type") == "history"
    ]


def summary_of(path):
    """Dotted name -> JSON text."""
    found = {}
    for record in records(path):
        if record.WhichOneof("record_type") == "summary":
            found |= {
                ".".join(item.nested_key) or item.key: item.value_json for item in record.summary.update
            }
    return found
