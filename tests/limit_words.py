"""How the table of limits writes its figures."""


def number(value: float) -> str:
    """1 << 20 and more as MiB, thousands with a space, as the table writes them."""
    if value >= 1 << 20 and value % (1 << 20) == 0:
        return f"{value // (1 << 20):.0f} MiB"
    return f"{value:,.0f}".replace(",", " ")


def seconds(value: float) -> str:
    return f"{value:g} s"
