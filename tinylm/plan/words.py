"""Numbers with their units, for people: bytes in powers of 1000, times from microseconds to years."""

from __future__ import annotations


def amount(count: float) -> str:
    """Bytes: 812 B, 97.3 kB, 1.02 GB."""
    return scaled(count, "B")


def scaled(number: float, unit: str) -> str:
    """A number of a unit with its prefix, three digits or so."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(number) < 999.5 or prefix == "P":
            break
        number /= 1000
    digits = 0 if not prefix or abs(number) >= 99.95 else 1 if abs(number) >= 9.995 else 2
    return f"{number:,.{digits}f} {prefix}{unit}"


def duration(seconds: float) -> str:
    """A time: 870 us, 3.2 ms, 41 s, 5 h 12 min, 12 d 7 h."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, hours, days = seconds / 60, seconds / 3600, seconds / 86_400
    if minutes < 120:
        return f"{minutes:.0f} min"
    if hours < 48:
        return f"{int(hours)} h {int(minutes % 60)} min"
    return f"{int(days):,} d {int(hours % 24)} h" if days < 1000 else f"{days / 365.25:,.1f} years"
