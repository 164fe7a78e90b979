"""The packages of `make package` in a fresh root: programs, plug-ins, man pages, completions, units, licences and the C++ SDK."""

import configparser
import os
import re
import subprocess
from pathlib import Path

import pytest
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from harness import BIN, PATIENCE, ROOT
from help_page import flags_of, help_of

PROGRAMS = ("outrider", "outrider-coordinator", "outrider-draft", "outrider-pair", "outrider-target")
VARIABLE = re.compile(r"at least (OUTRIDER_\w+)")


def run(*command: str | Path, **variables: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=os.environ | variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def packages() -> list[Path]:
    return [ROOT / line for line in run(ROOT / "scripts" / "package", "--built").splitlines()]


@pytest.fixture(scope="module")
def root(packages: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both Debian packages unpacked, and the plug-ins of this build installed."""
    root = tmp_path_factory.mktemp("root")
    for package in packages:
        if package.suffix == ".deb":
            run("dpkg-deb", "-x", package, root)
    for component in ("cuda", "torch"):
        run("cmake", "--install", BIN.parent, "--component", component, "--prefix", root / "usr")
    return root


def test_there_is_a_package_and_an_archive_of_the_programs_and_of_the_sdk(packages: list[Path]) -> None:
    assert len([package for package in packages if package.suffix == ".deb"]) == 2
    archives = [package for package in packages if package.name.endswith(".tar.gz")]
    listed = [run("tar", "-tzf", archive) for archive in archives]
    assert len(archives) == 2 and sum("bin/outrider\n" in names for names in listed) == 1
    programs, = (package for package in packages if package.name.startswith("outrider_"))
    assert re.search(r"^ Depends: .*libgrpc", run("dpkg-deb", "--info", programs), re.M)


def test_programs_find_their_models_from_where_they_are(root: Path) -> None:
    command = ["generate", "It was a dark evening", "--temperature", "0", "--max-tokens", "8", "--threads", "1"]
    assert run(root / "usr" / "bin" / "outrider", *command) == run(BIN / "outrider", *command)


def test_no_file_names_the_tree_that_it_was_built_in(root: Path) -> None:
    named = [str(file) for file in root.rglob("*") if file.is_file() and str(ROOT).encode() in file.read_bytes()]
    assert named == []


@pytest.mark.skipif(not (BIN / "liboutrider_torch.so").exists(), reason="built without libtorch")
def test_plug_ins_are_found_where_they_are_installed_and_where_a_variable_says(root: Path, tmp_path: Path) -> None:
    target = root / "usr" / "bin" / "outrider-target"
    assert (root / "usr" / "lib" / "outrider" / "liboutrider_torch.so").exists()
    assert "torch" in run(target, "--version")
    assert "torch" not in run(target, "--version", OUTRIDER_PLUGIN_PATH=str(tmp_path))
    assert "torch" in run(target, "--version", OUTRIDER_PLUGIN_PATH=str(BIN))


def test_every_program_and_command_has_a_page_with_all_of_its_flags(root: Path) -> None:
    commands = re.findall(r"^  ([a-z]+) ", help_of("outrider").split("Subcommands:")[1], re.M)
    pages = {name: [name] for name in PROGRAMS} | {f"outrider-{command}": ["outrider", command] for command in commands}
    for name, (program, *command) in pages.items():
        page = (root / "usr" / "share" / "man" / "man1" / f"{name}.1").read_text().replace("\\-", "-")
        flags = flags_of(program, *command)
        assert len(flags) > 2 and not [flag for flag in flags if flag not in page]
        assert str(ROOT) not in page


BASH = 'source "$1"; COMP_WORDS=("${@:2}"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _outrider; printf "%s\\n" "${COMPREPLY[@]}"'
ZSH = 'compadd() { print -l -- ${(P)2} }; file=$1; shift; words=("$@"); CURRENT=$#; source $file'
FISH = 'source $argv[1]; complete -C (string join " " -- $argv[2..])'


@pytest.mark.parametrize("shell, file, script", [
    ("bash", "bash-completion/completions/outrider", ("-c", BASH, "bash")),
    ("zsh", "zsh/site-functions/_outrider", ("-f", "-c", ZSH, "zsh")),
    ("fish", "fish/vendor_completions.d/outrider.fish", ("--no-config", "-c", FISH))], ids=("bash", "zsh", "fish"))
def test_shells_complete_commands_and_their_flags(shell: str, file: str, script: tuple[str, ...], root: Path) -> None:
    def completed(*words: str) -> set[str]:
        path = f"{root / 'usr' / 'bin'}:{os.environ['PATH']}"
        lines = run(shell, *script, root / "usr" / "share" / file, *words, PATH=path).splitlines()
        return {line.split("\t")[0] for line in lines}

    assert "generate" in completed("outrider", "gen")
    assert "--temperature" in completed("outrider", "generate", "--te")
    assert "--kv-blocks" in completed("outrider-target", "--kv")


def test_bash_completes_the_values_of_a_flag(root: Path) -> None:
    path = f"{root / 'usr' / 'bin'}:{os.environ['PATH']}"
    file = root / "usr" / "share" / "bash-completion" / "completions" / "outrider"
    assert run("bash", "-c", BASH, "bash", file, "outrider", "generate", "--rule", "b", PATH=path).split() == ["block"]


def test_units_start_programs_with_flags_that_they_have(root: Path) -> None:
    units = sorted((root / "usr" / "lib" / "systemd" / "system").iterdir())
    assert [unit.name for unit in units] == [f"outrider-{service}.service" for service in ("coordinator", "draft", "target")]
    for path in units:
        unit = configparser.ConfigParser(strict=False, interpolation=None)
        unit.optionxform = str  # type: ignore[assignment, method-assign]
        unit.read(path)
        program = unit["Service"]["ExecStart"]
        wanted = VARIABLE.search(path.read_text())
        assert wanted, path
        flag = "--" + wanted[1].removeprefix("OUTRIDER_").lower().replace("_", "-")
        assert "required" in flags_of(program, folder=root / "usr" / "bin")[flag]
        assert f"/etc/outrider/{program.removeprefix('outrider-')}.env" == unit["Service"]["EnvironmentFile"]


def test_licences_and_the_list_of_parts_name_all_that_is_linked(root: Path) -> None:
    folder = root / "usr" / "share" / "doc" / "outrider"
    text = (folder / "THIRD_PARTY_LICENSES").read_text()
    document = parse_file(str(folder / "outrider.spdx.json"))
    assert validate_full_spdx_document(document) == []
    parts = {package.name for package in document.packages}
    libraries = re.findall(r"=> (/\S+)", run("ldd", root / "usr" / "bin" / "outrider-coordinator"))
    for library in libraries:
        owners = subprocess.run(["dpkg-query", "-S", library, os.path.realpath(library)], capture_output=True, text=True).stdout
        package = owners.split(":")[0]
        assert package and package in parts and f"  {package} " in text, library
    assert {"xgrammar", "llama.cpp", "libboost1.74-dev" if "libboost1.74-dev" in parts else "nlohmann-json3-dev"} <= parts
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_the_sdk_is_linked_by_what_pkg_config_says(root: Path, tmp_path: Path) -> None:
    flags = run("pkg-config", "--cflags", "--libs", "outrider", PKG_CONFIG_PATH=str(root / "usr" / "lib" / "pkgconfig")).split()
    run("ccache", "g++", ROOT / "client" / "sdk" / "example" / "continue.cc", "-o", tmp_path / "continue", *flags)
    assert "usage: " in subprocess.run([tmp_path / "continue"], capture_output=True, text=True, timeout=PATIENCE).stderr
