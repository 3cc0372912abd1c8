"""Counts and bytes as short text."""


def format_amount(number: float) -> str:
    """A count in thousands, millions, ..., with three digits."""
    for unit in ("", "k", "M", "G", "T"):
        if number < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:,.3g}P"


def format_byte_count(count: float) -> str:
    """Bytes in the largest binary unit below them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:,.4g} TiB"
