"""Where else an experiment is asked. In: what it declares; out: what is another there."""
