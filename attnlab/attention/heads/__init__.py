"""One file per kind of heads: what is projected, what is cached, and how it becomes keys and values."""
