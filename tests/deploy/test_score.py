"""kube-score accepts every overlay, except for what is listed here."""

import json
import subprocess

import pytest

from manifests import OVERLAYS, TOOLS, objects_of, text_of

# In addition, an object's annotation kube-score/ignore lists, with a comment, what does not apply to it.
IGNORED = {
    "container-image-pull-policy": "tags are versions, which do not change; and a node may have been given the image",
    "deployment-has-host-podantiaffinity": "topologySpreadConstraints spread the pods",
    "statefulset-has-host-podantiaffinity": "topologySpreadConstraints spread the pods",
}
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


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_scores(overlay: str) -> None:
    assert score(text_of(overlay)) <= IGNORED.keys()


def test_each_ignore_is_needed() -> None:
    assert set().union(*(score(text_of(overlay)) for overlay in OVERLAYS)) == IGNORED.keys()


def test_annotations_ignore_only_what_is_commented() -> None:
    ignored = {(thing["metadata"]["name"], thing["metadata"]["annotations"]["kube-score/ignore"])
               for overlay in OVERLAYS for thing in objects_of(overlay)
               if "kube-score/ignore" in thing["metadata"].get("annotations", {})}
    assert ignored == {("outrider-draft", "deployment-replicas")}


def test_a_fault_lowers_the_score() -> None:
    assert "container-resources" in score(text_of("cpu").replace("memory: 2Gi", "x: 2Gi"))
    assert "container-security-context-readonlyrootfilesystem" in score(
        text_of("cpu").replace("readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false"))
