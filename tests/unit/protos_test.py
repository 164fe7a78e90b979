"""The protos follow buf's standard rules and are compatible with the landed version."""

import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import protos  # noqa: E402

INTERNAL = {
    "ADDRESS_UNAVAILABLE",  # a program ends with it
    "KV_BLOCKS_EXHAUSTED",  # of a pool; its server answers KV_EXHAUSTED
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the protos that a test may break."""
    return Path(shutil.copytree(ROOT / "proto", tmp_path / "proto"))


def edit(copy: Path, name: str, old: str, new: str) -> None:
    path = copy / "outrider" / "v1" / name
    text = path.read_text()
    assert old in text, f"{name} has no {old!r} any more"
    path.write_text(text.replace(old, new, 1))


def test_the_protos_are_in_style() -> None:
    assert protos.wrong_style(protos.PROTO) == []


def test_the_protos_break_nobody() -> None:
    assert protos.broken(protos.PROTO, protos.LANDED) == []


def test_what_landed_is_the_last_word() -> None:
    assert protos.outdated(protos.PROTO, protos.LANDED) == []


def test_every_reason_of_an_error_is_documented() -> None:
    """Errors over HTTP are documented by their code there, which is the reason in small letters."""
    sources = [path for folder in ("client/sdk", "client/cli", "common", "coordinator", "draft_service", "target_service")
               for path in (ROOT / folder).rglob("*.[ch]*")]
    named = r'(?:MakeError\(\s*absl::StatusCode::\w+,|BusyError\(|InvalidFor\(|\berror\(|kUnavailable =)\s*"([A-Z_]+)"'
    reasons = {reason for path in sources for reason in re.findall(named, path.read_text())}
    assert len(reasons) > 50
    rows = "".join((ROOT / "docs" / name).read_text() for name in ("protocol.md", "openai.md"))
    assert {reason for reason in reasons if not re.search(rf"\b({reason}|{reason.lower()})\b", rows)} == INTERNAL


@pytest.mark.parametrize("old, new, complaint", [
    ("  // Its id.\n  uint32 id", "  uint32 id", "comment"),
    ("// Why a generation ended.\nenum", "enum", "comment"),
    ("  FINISH_REASON_STOP", "  REASON_STOP", "prefixed"),
    ("string text = 3", "string Text = 3", "lower_snake_case"),
    ("(GenerateRequest)", "(TokenPrompt)", "GenerateRequest")])
def test_a_fault_of_style_is_found(old: str, new: str, complaint: str, copy: Path) -> None:
    edit(copy, "inference.proto", old, new)
    assert any(complaint in line for line in protos.wrong_style(copy))


@pytest.mark.parametrize("name, old, new", [
    ("inference.proto", "  uint32 running = 3;\n", ""),
    ("inference.proto", "uint32 running = 3;", "uint32 running = 30;"),
    ("inference.proto", "uint32 running = 3;", "uint64 running = 3;"),
    ("inference.proto", "uint32 running = 3;", "uint32 active = 3;"),
    ("inference.proto", "DRAFTER_KIND_COPY = 4", "DRAFTER_KIND_COPY = 99"),
    ("target.proto", "rpc Verify(", "rpc Check("),
    ("draft.proto", "returns (stream ProposeResponse)", "returns (ProposeResponse)")])
def test_a_break_is_found_and_does_not_land_unless_it_is_meant(name: str, old: str, new: str, copy: Path) -> None:
    edit(copy, name, old, new)
    landed = copy / "landed.binpb"
    before = landed.read_bytes()
    assert protos.broken(copy, landed)
    assert protos.land(copy, landed, breaking=False) != []
    assert landed.read_bytes() == before
    protos.land(copy, landed, breaking=True)
    assert (protos.broken(copy, landed) == []) == (landed.read_bytes() != before)


def test_an_addition_breaks_nobody_and_has_to_be_landed(copy: Path) -> None:
    edit(copy, "inference.proto", "message DescribeRequest {}",
         "message DescribeRequest {\n  // More.\n  bool more = 1;\n}")
    landed = copy / "landed.binpb"
    assert protos.broken(copy, landed) == []
    assert [line.split(":")[0] for line in protos.outdated(copy, landed)] == ["outrider/v1/inference.proto"]
    assert protos.land(copy, landed, breaking=False) == []
    assert protos.outdated(copy, landed) == []
    edit(copy, "inference.proto", "bool more = 1;", "bool more = 2;")
    assert protos.broken(copy, landed)
