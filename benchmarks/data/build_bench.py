"""The benchmark of docs/results.md, from its public sources, byte for byte.

    python benchmarks/data/build_bench.py --sources SOURCES --to BENCH
    python benchmarks/data/build_bench.py --sources SOURCES --to BENCH --datasets emoji ikea
    python benchmarks/data/build_bench.py --to BENCH

README.md beside this file says what SOURCES must hold and how to get it. Without --sources nothing is built:
the tables under BENCH are compared with the checksums, which a build also ends with.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import cub, emoji, fashion, flickr8k, ikea
from bench.checks import problems
from bench.domain import NUMBERS, Domain
from bench.pictures import write_pictures
from bench.tables import expected_checksums, verify_tables, write_tables

from genius.errors import BadInput

BUILDERS: dict[str, Callable[[Path, int], Domain]] = {
    "flickr8k": flickr8k.build,
    "fashion": fashion.build,
    "ikea": ikea.build,
    "cub": cub.build,
    "emoji": emoji.build,
}


def build(sources: Path, to: Path, datasets: Sequence[str], workers: int, pictures: bool = True) -> None:
    """Write the tables, and the pictures they name, of these datasets."""
    if to.exists() and any(to.iterdir()):
        raise BadInput(f"{to} is not empty: choose a new folder")
    domains = {name: BUILDERS[name](sources, workers) for name in datasets}
    write_tables(domains, to)
    for domain in domains.values() if pictures else ():
        write_pictures(domain.public_pictures(), sources, to, workers)


def report(to: Path, datasets: Sequence[str]) -> bool:
    """Print how the tables compare with the committed checksums, and what is unsound; whether all is well."""
    wrong = verify_tables(to, datasets)
    total = len(expected_checksums(datasets))
    print(f"{total - len(wrong)} of {total} tables are equal, byte for byte")
    unsound = list(problems(to)) if "is missing" not in wrong.values() else []
    for line in [*(f"{path} {what}" for path, what in wrong.items()), *unsound]:
        print(line)
    return not wrong and not unsound


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sources", type=Path, help="the folder of the sources; without it, only compare")
    parser.add_argument("--to", type=Path, required=True, help="the benchmark's folder, in M-BEIR's layout")
    parser.add_argument("--datasets", nargs="+", choices=NUMBERS, default=list(NUMBERS))
    parser.add_argument("--tables", action="store_true", help="write the tables only, no pictures")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    try:
        if given.sources is not None:
            build(given.sources, given.to, given.datasets, given.workers, not given.tables)
    except BadInput as error:
        print(error, file=sys.stderr)
        return 1
    return 0 if report(given.to, given.datasets) else 1


if __name__ == "__main__":
    sys.exit(main())
