"""`outrider compare`: every drafter gives the target's texts, and one that lies about its q is named."""

import re
import subprocess

from harness import BIN, PRECISE, cluster
from test_distribution import liar

ROW = re.compile(r"^(\w+) +(\d) of (\d) equal +p = (\S+?)(, DIFFER)? ", re.M)


def compare(*flags: str) -> tuple[int, dict[str, tuple[str, ...]]]:
    """The exit status, and the rows of the table by drafter."""
    done = subprocess.run([BIN / "outrider", "compare", *flags], capture_output=True, text=True, timeout=280)
    assert done.stderr == ""
    return done.returncode, {name: rest for name, *rest in ROW.findall(done.stdout)}


def test_every_drafter_of_the_shipped_pair_gives_the_targets_texts() -> None:
    status, rows = compare("--samples", "200", "--max-tokens", "30", "--threads", "1")
    assert status == 0
    assert set(rows) == {"none", "model", "ngram", "copy", "auto", "medusa", "blockwise", "eagle", "layer_skip", "pass"}
    assert all(equal == of == "4" and float(p) > 1e-4 and not differs for equal, of, p, differs in rows.values())


def test_a_drafter_that_lies_is_named() -> None:
    with cluster(target=PRECISE, through=liar) as c:
        status, rows = compare("--address", c.coordinator.address, "--samples", "600", "--max-tokens", "8")
    assert status == 1
    assert [name for name, (*_, differs) in rows.items() if differs] == ["model", "auto"]  # auto drafts with the model too
    assert all(equal == of == "4" for equal, of, *_ in rows.values()), "a lie about q changes no greedy token"
