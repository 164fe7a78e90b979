"""The programs are position independent, their tables are read-only once loaded, and stacks and copies are checked."""

import os
import re
import subprocess
from pathlib import Path

import pytest

BIN = Path(os.environ["OUTRIDER_BIN"])
PROGRAMS = ["outrider", "outrider-coordinator", "outrider-draft", "outrider-target", "outrider-pair"]


def readelf(option, file):
    return subprocess.run(["readelf", "--wide", option, file], check=True, capture_output=True, text=True).stdout


def missing(headers, segments, dynamic, symbols):
    """The protections that a program lacks, according to the output of readelf."""
    wanted = {
        "position independent": re.search(r"Type:\s+DYN", headers),
        "stack that is not executable": re.search(r"GNU_STACK.*\bRW\s", segments),
        "read-only relocations": "GNU_RELRO" in segments,
        "all symbols bound at start": re.search(r"\(FLAGS\).*BIND_NOW|\(FLAGS_1\).*\bNOW\b", dynamic),
        "stack protector": "__stack_chk_fail" in symbols,
        "checked copies": re.search(r"__(memcpy|memmove|memset|read|snprintf|vsnprintf)_chk", symbols)}
    return {name for name, there in wanted.items() if not there}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_is_hardened(program):
    assert missing(*(readelf(option, BIN / program) for option in ("-h", "-l", "-d", "--dyn-syms"))) == set()


def test_a_program_that_is_not_hardened_is_told(tmp_path):
    (tmp_path / "plain.c").write_text("int main(void) { return 0; }\n")
    plain = tmp_path / "plain"
    subprocess.run(["cc", "-O0", "-no-pie", "-fno-stack-protector", "-Wl,-z,norelro,-z,lazy,-z,execstack", "-o", plain,
                    tmp_path / "plain.c"], check=True)
    found = missing(*(readelf(option, plain) for option in ("-h", "-l", "-d", "--dyn-syms")))
    assert len(found) == 6, found
