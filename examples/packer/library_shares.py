"""A link shared by three tasks: guarantees first; idle bandwidth is lent by weight and returned at once."""

from dios.packer import share_bandwidth

LINK = 1000.0
TASKS = ("query", "backup", "sync")
GUARANTEES = (400.0, 100.0, 100.0)
WEIGHTS = (0.5, 0.25, 1.0)


def main() -> None:
    """Print each task's rate while demands change."""
    moments = {
        "all want little": (50, 50, 50),
        "query idles": (0, 900, 900),
        "query is back": (400, 900, 900),
        "all want more than there is": (900, 900, 900),
    }
    print(f"{'':28}" + "".join(f"{task:>10}" for task in TASKS) + f"{'idle':>10}")
    print(f"{'guaranteed':28}" + "".join(f"{rate:10.0f}" for rate in GUARANTEES))
    for moment, demands in moments.items():
        rates = share_bandwidth(LINK, GUARANTEES, demands, WEIGHTS)
        shown = "".join(f"{rate:10.0f}" for rate in rates)
        print(f"{moment:28}{shown}{LINK - rates.sum():10.0f}")


if __name__ == "__main__":
    main()
