"""The patches of tests/mutants can still be applied, and the tests that they name are there. `make test-mutants` runs them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MUTANTS = ROOT / "tests" / "mutants"


def missing_places(patch, read):
    """The places that a patch would change and cannot find. `read` gives the text of a file."""
    wrong, files = [], re.split(r"^--- a/(.+)\n\+\+\+ b/.+\n", patch, flags=re.M)[1:]
    if not files:
        wrong.append("it changes nothing")
    for file, hunks in zip(files[::2], files[1::2]):
        for hunk in re.split(r"^@@ .*\n", hunks, flags=re.M)[1:]:
            before = "".join(line[1:] for line in hunk.splitlines(keepends=True) if line[0] in " -")
            if "\n" + before not in "\n" + read(file):
                wrong.append(f"{file} has no longer:\n{before}")
    return wrong


def missing_test(catcher, sources):
    """The error if `sources` (name of a file -> text) does not have the test that a patch names. A * stands for anything."""
    if match := re.fullmatch(r"tests/system/(test_\w+\.py)::(\w+)", catcher):
        found = re.search(rf"^def {match[2]}\(", sources.get(match[1], ""), re.M)
    elif match := re.fullmatch(r"(\w+) --gtest_filter=([\w*]+)\.([\w*]+)", catcher):
        suite, test = (re.escape(part).replace(r"\*", r"\w*") for part in match.groups()[1:])
        # *Suite.*Setting* names the parameter, which is in no macro.
        test = r"\w+" if match[3].startswith("*") else test
        found = any(re.search(rf"\bTEST(_F|_P)?\(\s*{suite}\s*,\s*{test}\s*\)", text)
                    for name, text in sources.items() if name.endswith("_test.cc"))
    else:
        return f"{catcher} is no test"
    return None if found else f"there is no test {catcher}"


def problems(patch, read, sources):
    sentence, catcher, *_ = [*patch.splitlines(), "", ""]
    wrong = missing_places(patch, read)
    if not re.fullmatch(r"[A-Z].*\.", sentence):
        wrong.append("the first line is no sentence")
    if not catcher.startswith("Caught-by: "):
        return [*wrong, "the second line does not say what notices it"]
    missing = missing_test(catcher.removeprefix("Caught-by: "), sources)
    return wrong + ([missing] if missing else [])


@pytest.mark.parametrize("path", sorted(MUTANTS.glob("*.patch")), ids=lambda path: path.stem)
def test_a_mutant_fits_the_code_and_its_test_is_there(path):
    sources = {source.name: source.read_text() for folder in ("unit", "slow", "system")
               for source in (ROOT / "tests" / folder).iterdir() if source.suffix in {".cc", ".py"}}
    assert problems(path.read_text(), lambda file: (ROOT / file).read_text(), sources) == []


CODE = {"a.cc": "int one;\nint two;\nint three;\n"}
SOURCES = {"a_test.cc": "TEST_F(Suite, Test) {}", "test_a.py": "def test_it() -> None:"}
PATCH = """Two is one.
Caught-by: a_test --gtest_filter=Suite.Test

--- a/a.cc
+++ b/a.cc
@@ -1,2 +1,2 @@
 int one;
-int two;
+int one;
"""


def test_a_patch_that_fits_is_taken():
    assert problems(PATCH, CODE.get, SOURCES) == []
    named = PATCH.replace("a_test --gtest_filter=Suite.Test", "tests/system/test_a.py::test_it")
    assert problems(named, CODE.get, SOURCES) == []
    assert problems(PATCH.replace("Suite.Test", "*Suite.*Setting*"), CODE.get, SOURCES) == []


@pytest.mark.parametrize("old, new", [
    ("-int two;", "-int 2;"), (" int one;", " int three;"), ("Two is one.", "two"), ("Caught-by", "Noticed-by"),
    ("Suite.Test", "Suite.Other"), ("Suite.Test", "Other.Test"), ("Suite.Test", "-Suite.Test"), ("--- a/a.cc\n", "")])
def test_a_patch_that_does_not_fit_is_named(old, new):
    assert len(problems(PATCH.replace(old, new, 1), CODE.get, SOURCES)) == 1
