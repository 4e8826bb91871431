"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from launcher.nodeset import fold_numbers


def seconds(value: float) -> str:
    """`0.8 s`, `42 s`, `3 min 5 s`, `2 h 07 min`."""
    if value < 10:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def size(value: float) -> str:
    """`512 B`, `3.4 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def ranks(numbers: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-2,5`."""
    numbers = list(numbers)
    return f"rank{'' if len(numbers) == 1 else 's'} {fold_numbers(numbers)}"


def plural(count: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of cells under each other, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
