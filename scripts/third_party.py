#!/usr/bin/env python3
"""Says what others wrote of the programs: their licences as one text, and a list of the parts in SPDX.

    .venv/bin/python scripts/third_party.py BUILD TEXT [SBOM.spdx.json]

What was linked is asked of the programs in BUILD/bin (ldd), what was compiled in of the build itself (ninja's record of the
headers that each file includes), and which Debian package a file is of, of dpkg. Libraries in source form and the Python packages
that plug-ins link to stand in .venv. With SBOM it needs scripts/requirements-package.txt.
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VERSION = re.search(r"project\(outrider VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
# Compiled files that are in no program: only tests and benchmarks include them.
NOT_SHIPPED = ("tests/", "bench/")
# Plug-ins, and the Python packages whose libraries they link to.
PLUGINS = {"liboutrider_cuda.so": "nvidia_|flashinfer", "liboutrider_torch.so": "torch-|nvidia_cuda_",
           "liboutrider_torch_cuda.so": "nvidia_nccl"}


@dataclass(frozen=True, order=True)
class Part:
    name: str
    version: str
    origin: str  # Debian, PyPI or sources
    licence: str  # an SPDX expression, or NOASSERTION: see the text
    text: str


def output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def linked(program: Path) -> set[Path]:
    found = output("ldd", program)
    if missing := re.findall(r"(\S+) => not found", found):
        sys.exit(f"third_party: {program.name} lacks {', '.join(missing)}")
    return {Path(path).resolve() for path in re.findall(r"=> (/\S+)", found)}


def included(build: Path) -> set[Path]:
    """The headers outside the repository that the shipped programs were compiled with."""
    found: set[Path] = set()
    shipped = False
    for line in output("ninja", "-C", build, "-t", "deps").splitlines():
        if not line.startswith(" "):
            shipped = not line.startswith(NOT_SHIPPED)
        elif shipped and line.startswith("    /"):
            found.add(Path(line.strip()).resolve())
    return found


def debian_parts(files: set[Path]) -> list[Part]:
    # The package database may list a file of /usr/lib under /lib.
    paths = {path for file in files for path in (str(file), str(file).removeprefix("/usr"))}
    named = subprocess.run(["dpkg-query", "-S", *sorted(paths)], capture_output=True, text=True).stdout
    packages = sorted({name for line in named.splitlines() for name in line.split(": ")[0].split(", ") if "diversion" not in name})
    parts = []
    for package in packages:
        version = output("dpkg-query", "-W", "-f=${Version}", package)
        text = Path("/usr/share/doc", package.split(":")[0], "copyright")
        if not text.exists():
            sys.exit(f"third_party: {text} is missing")
        parts.append(Part(package.split(":")[0], version, "Debian", "NOASSERTION", text.read_text(errors="replace")))
    return parts


def source_parts() -> list[Part]:
    versions = dict(re.findall(r"^([a-z-]+)==(\S+)", (ROOT / "scripts" / "sources.txt").read_text(), re.M))
    sources = VENV / "src"
    picojson = (sources / "xgrammar/3rdparty/picojson/picojson.h").read_text()
    return [
        Part("llama.cpp", f"of llama-cpp-python {versions['llama-cpp-python']}", "sources", "MIT",
             (sources / "llama.cpp/LICENSE").read_text()),
        Part("xgrammar", versions["xgrammar"], "sources", "Apache-2.0",
             (sources / "xgrammar/LICENSE").read_text() + (sources / "xgrammar/NOTICE").read_text()),
        Part("dlpack", f"of xgrammar {versions['xgrammar']}", "sources", "Apache-2.0",
             "Copyright (c) 2017 by Contributors. Apache License 2.0, which xgrammar's part has."),
        Part("picojson", f"of xgrammar {versions['xgrammar']}", "sources", "BSD-2-Clause", picojson[:picojson.index("*/")])]


def python_parts(pattern: str) -> list[Part]:
    parts = []
    for folder in sorted(VENV.glob("lib/python3*/site-packages/*.dist-info")):
        if not re.match(pattern, folder.name):
            continue
        name, version = folder.name.removesuffix(".dist-info").split("-")
        texts = [file.read_text(errors="replace") for file in sorted(folder.rglob("*"))
                 if file.is_file() and re.match(r"(licen[sc]e|notice)", file.name, re.I)]
        said = re.search(r"^License(?:-Expression)?: (.+)", (folder / "METADATA").read_text(), re.M)
        parts.append(Part(name, version, "PyPI", "NOASSERTION", "\n".join(texts) or (said[1] if said else "")))
    return parts


def parts_of(build: Path) -> list[Part]:
    programs = [path for path in sorted((build / "bin").iterdir()) if re.fullmatch(r"outrider(-[a-z]+)?", path.name)]
    libraries = {library for program in programs for library in linked(program)}
    wheels = [pattern for plugin, pattern in PLUGINS.items() if (build / "bin" / plugin).exists()]
    of_system = {file for file in libraries | included(build) if VENV not in file.parents}
    parts = debian_parts(of_system) + source_parts()
    return sorted({*parts, *python_parts("|".join(wheels))} if wheels else parts, key=lambda part: (part.name.lower(), part.version))


def write_text(parts: list[Part], path: Path) -> None:
    heads = "".join(f"  {part.name} {part.version} ({part.origin})\n" for part in parts)
    texts = "".join(f"\n{'=' * 100}\n{part.name} {part.version}\n{'=' * 100}\n\n{part.text.strip()}\n" for part in parts)
    path.write_text("What others wrote of Outrider's programs and plug-ins: libraries that they link to, and headers and sources that\n"
                    f"were compiled into them.\n\n{heads}{texts}")


def write_sbom(parts: list[Part], path: Path) -> None:
    from license_expression import get_spdx_licensing
    from spdx_tools.spdx.model import Actor, ActorType, CreationInfo, Document, Package, Relationship, RelationshipType, SpdxNoAssertion
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document
    from spdx_tools.spdx.writer.write_anything import write_file

    def licence(part: Part) -> object:
        return SpdxNoAssertion() if part.licence == "NOASSERTION" else get_spdx_licensing().parse(part.licence)

    def package(part: Part, id_: str) -> Package:
        return Package(spdx_id=id_, name=part.name, version=part.version, download_location=SpdxNoAssertion(), files_analyzed=False,
                       license_declared=licence(part), license_concluded=SpdxNoAssertion(), copyright_text=SpdxNoAssertion())

    ids = {part: f"SPDXRef-{i}-{re.sub(r'[^A-Za-z0-9.]', '-', part.name)}" for i, part in enumerate(parts)}
    ours = package(Part("outrider", VERSION, "", "Apache-2.0", ""), "SPDXRef-outrider")
    document = Document(
        CreationInfo(spdx_version="SPDX-2.3", spdx_id="SPDXRef-DOCUMENT", name=f"outrider-{VERSION}", data_license="CC0-1.0",
                     document_namespace=f"https://spdx.org/spdxdocs/outrider-{VERSION}",
                     created=datetime.now(timezone.utc).replace(microsecond=0, tzinfo=None),
                     creators=[Actor(ActorType.ORGANIZATION, "Outrider"), Actor(ActorType.TOOL, "spdx-tools")]),
        packages=[ours, *(package(part, id_) for part, id_ in ids.items())],
        relationships=[Relationship("SPDXRef-DOCUMENT", RelationshipType.DESCRIBES, "SPDXRef-outrider"),
                       *(Relationship("SPDXRef-outrider", RelationshipType.DEPENDS_ON, id_) for id_ in ids.values())])
    if problems := validate_full_spdx_document(document):
        sys.exit(f"third_party: {problems[0].validation_message}")
    write_file(document, str(path))


def main() -> None:
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    parts = parts_of(Path(sys.argv[1]))
    write_text(parts, Path(sys.argv[2]))
    if len(sys.argv) == 4:
        write_sbom(parts, Path(sys.argv[3]))


if __name__ == "__main__":
    main()
