"""kube-score accepts every overlay, except for what is listed here."""

import json
import subprocess

import pytest
import yaml

from manifests import OVERLAYS, TOOLS, leader_of, objects_of, workloads

# In addition, an object's annotation kube-score/ignore lists, with a comment, the checks that do not apply to it.
IGNORED = {
    "container-image-pull-policy": "tags are versions, which do not change; and a node may have been given the image",
    "deployment-has-host-podantiaffinity": "topologySpreadConstraints spread the pods",
    "statefulset-has-host-podantiaffinity": "topologySpreadConstraints spread the pods",
}
# Ignored for the StatefulSet of a LeaderWorkerSet's workers, which cannot have an annotation: nothing finds them by name.
IGNORED_OF_WORKERS = "statefulset-has-servicename"
KUBE_SCORE = TOOLS / "bin" / "kube-score"
OK = 10
if not KUBE_SCORE.exists():
    pytest.skip("kube-score is not installed: scripts/install_tools", allow_module_level=True)


def score(manifests: str) -> set[str]:
    """The checks that fail, without the ignored ones."""
    ran = subprocess.run([KUBE_SCORE, "score", "--kubernetes-version", "v1.36", "--output-format", "json", "-"],
                         input=manifests, stdout=subprocess.PIPE, text=True)
    found = [check for scored in json.loads(ran.stdout) for check in scored["checks"]]
    assert len(found) > 50, "kube-score has read the manifests"
    return {check["check"]["id"] for check in found if not check["skipped"] and check["grade"] < OK}


def text_of(overlay: str) -> str:
    """An overlay with the StatefulSets of each LeaderWorkerSet in its place, since kube-score does not know that kind."""
    objects = objects_of(overlay)
    pods = workloads(objects)
    others = [thing for thing in objects if thing not in pods and thing["kind"] != "LeaderWorkerSet"]
    for workers in [workload for workload in pods if leader_of(workload, objects) is not workload]:
        workers["metadata"]["annotations"] = {"kube-score/ignore": IGNORED_OF_WORKERS}
    return yaml.safe_dump_all([*others, *pods])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_scores(overlay: str) -> None:
    assert score(text_of(overlay)) <= IGNORED.keys()


def test_each_ignore_is_needed() -> None:
    assert set().union(*(score(text_of(overlay)) for overlay in OVERLAYS)) == IGNORED.keys()
    assert IGNORED_OF_WORKERS in score(text_of("tensor-parallel").replace("kube-score/ignore", "another"))


def test_annotations_ignore_only_what_is_commented() -> None:
    ignored = {(thing["metadata"]["name"], thing["metadata"]["annotations"]["kube-score/ignore"])
               for overlay in OVERLAYS for thing in objects_of(overlay)
               if "kube-score/ignore" in thing["metadata"].get("annotations", {})}
    assert ignored == {("outrider-draft", "deployment-replicas")}


def test_a_fault_lowers_the_score() -> None:
    assert "container-resources" in score(text_of("cpu").replace("memory: 2Gi", "x: 2Gi"))
    assert "container-security-context-readonlyrootfilesystem" in score(
        text_of("cpu").replace("readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false"))
    ranks = text_of("tensor-parallel")
    assert ranks.count("readOnlyRootFilesystem: true") == 4
    last = ranks.rindex("readOnlyRootFilesystem: true")
    assert "container-security-context-readonlyrootfilesystem" in score(
        ranks[:last] + ranks[last:].replace("true", "false", 1)), "workers are scored too"
