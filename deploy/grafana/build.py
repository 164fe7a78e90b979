"""Writes the dashboards.

    .venv/bin/python deploy/grafana/build.py [--out deploy/grafana/dashboards]

Edit parts/, not the JSON: a test compares the two.
"""

import argparse
import json
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from parts.acceptance import acceptance
from parts.engine import engine
from parts.latency import latency
from parts.overview import overview

FOLDER = Path(__file__).resolve().parent / "dashboards"
DASHBOARDS = {"overview": overview, "acceptance": acceptance, "engine": engine, "latency": latency}


def build() -> dict[str, str]:
    """The text of each file, by its name."""
    return {
        f"{name}.json": json.dumps(make(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"
        for name, make in DASHBOARDS.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder for the dashboards")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, text in build().items():
        (options.out / name).write_text(text)
        print(options.out / name)


if __name__ == "__main__":
    main()
