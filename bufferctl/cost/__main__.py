"""Write docs/cost.md: `.venv/bin/python -m bufferctl.cost --document docs`. `bufferctl cost` prints a stage's bill."""

import argparse
from pathlib import Path

from bufferctl.cost.command import stages
from bufferctl.cost.page import write


def main() -> None:
    parser = argparse.ArgumentParser(prog=".venv/bin/python -m bufferctl.cost", description=__doc__)
    parser.add_argument("--document", type=Path, required=True, metavar="FOLDER", help="where to write cost.md")
    write(parser.parse_args().document, stages())


if __name__ == "__main__":
    main()
