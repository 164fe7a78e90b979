"""Writes JSON schemas for kubeconform -strict, laid out as its -schema-location expects.

    .venv/bin/python scripts/make_schemas.py CRDS OUT

The schemas of Kubernetes come from the package kubernetes-validate, those of custom resources from the definitions in the
folder CRDS, if there is one. OUT is replaced.
"""

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

VERSION = "v1.36.0"


def without_null(schema: Any) -> Any:
    """Removes null from the types: the schemas accept it for every optional field, so `spec: null` would pass."""
    if isinstance(schema, list):
        return [without_null(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: without_null(value) for key, value in schema.items()}
    if isinstance(schema.get("type"), list):
        types = [name for name in schema["type"] if name != "null"]
        schema["type"] = types[0] if len(types) == 1 else types
    return schema


def strict(schema: Any) -> Any:
    """Refuses unknown fields. A server prunes fields that a custom resource's definition does not name; here they are errors."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        schema.pop("type", None)
    return schema


def kubernetes_schemas() -> dict[str, Any]:
    package = Path(importlib.util.find_spec("kubernetes_validate").origin).parent
    schemas = {}
    for path in (package / "kubernetes-json-schema" / f"{VERSION}-local-strict").glob("*.json"):
        # The package's references start at the root of a server; here the files are in one folder.
        schema = without_null(json.loads(path.read_text().replace('"/api/_definitions.json#', '"_definitions.json#')))
        schema.pop("$id", None)
        schemas[path.name] = schema
    assert schemas, f"no schemas of Kubernetes {VERSION} in {package}"
    return schemas


def custom_schemas(folder: Path) -> dict[str, Any]:
    schemas = {}
    for path in folder.glob("*.yaml"):
        spec = yaml.safe_load(path.read_text())["spec"]
        for version in spec["versions"]:
            name = f"{spec['names']['kind']}-{spec['group'].split('.')[0]}-{version['name']}.json".lower()
            schemas[name] = strict(version["schema"]["openAPIV3Schema"])
    return schemas


def main() -> None:
    crds, out = map(Path, sys.argv[1:])
    folder = out / f"{VERSION}-standalone-strict"
    shutil.rmtree(out, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, schema in (kubernetes_schemas() | custom_schemas(crds)).items():
        (folder / name).write_text(json.dumps(schema))


if __name__ == "__main__":
    main()
