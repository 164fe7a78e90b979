"""The Helm chart as Helm renders it."""

import functools
import subprocess
from pathlib import Path

import yaml

from manifests import ROOT, TOOLS, Object, find, objects_of

CHART = ROOT / "deploy" / "helm" / "outrider"
HELM = TOOLS / "bin" / "helm"
SUFFIX = "-values.yaml"
CASES = sorted(path.name.removesuffix(SUFFIX) for path in (CHART / "ci").glob(f"*{SUFFIX}"))
# Helm that is built without its Makefile assumes an older cluster.
VERSION = ("--kube-version", "1.36.0")


def values_of(case: str) -> Object:
    return yaml.safe_load((CHART / "ci" / f"{case}{SUFFIX}").read_text())


def helm(*arguments: str | Path, values: Object | None = None, folder: Path = ROOT) -> tuple[int, str, str]:
    """Runs Helm; returns its exit code, stdout and stderr."""
    ran = subprocess.run([HELM, *arguments, "-f", "-"] if values is not None else [HELM, *arguments], text=True, cwd=folder,
                         input=yaml.safe_dump(values), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return ran.returncode, ran.stdout, ran.stderr


def template(values: Object, chart: str | Path = CHART, folder: Path = ROOT) -> tuple[int, str, str]:
    return helm("template", "outrider", chart, "--namespace", "outrider", *VERSION, values=values, folder=folder)


def text_of(values: Object) -> str:
    return _text(yaml.safe_dump(values))


@functools.cache
def _text(values: str) -> str:
    code, text, said = template(yaml.safe_load(values))
    assert code == 0, said
    return text


def chart_objects(values: Object) -> list[Object]:
    """The chart's objects without hooks, and the namespace, which the user makes."""
    objects = [thing for thing in yaml.safe_load_all(text_of(values)) if not is_hook(thing)]
    return [find(objects_of("cpu"), "Namespace", "outrider"), *objects]


def is_hook(thing: Object) -> bool:
    return "helm.sh/hook" in thing["metadata"].get("annotations", {})
