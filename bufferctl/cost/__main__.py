"""Prints the bill: `.venv/bin/python -m bufferctl.cost --stage prod --messages-per-day 100000 [--json]`."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from infra import cli

try:
    from pydantic import ValidationError

    from bufferctl.cost import document
    from bufferctl.cost.report import as_json, as_text
    from bufferctl.cost.traffic import Traffic
    from infra.settings_and_defaults import LOCAL, ConfigError, load_stage
except ModuleNotFoundError as missing:
    sys.exit(cli.missing_package(missing))

ROOT = Path(__file__).parents[2]


def main(arguments: list[str] | None = None) -> int:
    options = vars(_parser().parse_args(arguments))
    stages = json.loads((ROOT / "cdk.json").read_text())["context"]["stages"]
    folder, stage, wants_json = options.pop("document"), options.pop("stage"), options.pop("json")
    overrides = options.pop("overrides")
    if folder:
        document.write(folder, stages)
        return 0
    if stage == LOCAL:
        print("The local stage costs nothing: it runs on your machine.")
        return 0
    try:
        config = load_stage(stages, stage=stage, overrides=overrides)
        traffic = Traffic.model_validate(options)
    except ConfigError as error:
        return _refuse(str(error).replace("-c stage=", "--stage ").replace("-c overrides=", "--overrides "))
    except ValidationError as error:
        wrong = [f"--{str(found['loc'][0]).replace('_', '-')}: {found['msg']}" for found in error.errors()]
        return _refuse(". ".join(wrong))
    print(json.dumps(as_json(config, traffic), indent=2) if wants_json else as_text(config, traffic))
    return 0


def _refuse(problem: str) -> int:
    print(problem, file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=".venv/bin/python -m bufferctl.cost", description="What a stage costs a month."
    )
    parser.add_argument("--stage", help="a stage of cdk.json")
    parser.add_argument("--overrides", metavar="JSON", help="an object that is merged over the stage's values")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument("--document", type=Path, metavar="FOLDER", help="write cost.md and cost.svg there instead")
    for name, field in Traffic.model_fields.items():
        default: Any = field.default
        text = f"{field.description} (default: {default:,})"
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=default, metavar="N", help=text)
    return parser


if __name__ == "__main__":
    sys.exit(main())
