"""Each arm at its own learning rate: the arms of an experiment in, the runs that find their rates out."""
