"""The Python package as an index would get it: its files, its metadata, and that its sources alone are enough."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

ROOT = Path(__file__).resolve().parents[2]
PROTOS = ROOT / "proto"


def run(*command: str | Path, folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, folder=ROOT / "python")
    return folder


@pytest.fixture(scope="module")
def sdist(built: Path) -> Path:
    path, = built.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    path, = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Metadata:
    text, = (text for name, text in members(wheel).items() if name.endswith(".dist-info/METADATA"))
    return Metadata.from_email(text)


@pytest.fixture(scope="module")
def rebuilt(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the source distribution makes, away from the clone."""
    folder = tmp_path_factory.mktemp("rebuilt")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-index", "--no-deps", "--no-build-isolation", "-w", folder, sdist, folder=folder)
    path, = folder.glob("*.whl")
    return path


def test_an_index_takes_both(sdist: Path, wheel: Path, built: Path) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel, folder=built)


def test_it_says_who_made_it_and_what_it_needs(metadata: Metadata) -> None:
    assert (metadata.author, metadata.license_expression, metadata.license_files) == ("The Outrider project", "Apache-2.0", ["LICENSE"])
    assert {requirement.name for requirement in metadata.requires_dist} == {"googleapis-common-protos", "grpcio", "protobuf"}
    versions = re.findall(r"^Programming Language :: Python :: (3\.\d+)$", "\n".join(metadata.classifiers), re.M)
    assert versions and all(version in metadata.requires_python for version in versions)
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in versions


def test_its_page_needs_no_clone(metadata: Metadata) -> None:
    assert metadata.description_content_type == "text/markdown"
    assert metadata.description == (ROOT / "python" / "README.md").read_text()
    assert [link for link in re.findall(r"\]\(([^)\s]+)\)", metadata.description) if not link.startswith("https://")] == []


def test_the_sources_have_the_licence_the_readme_and_the_protos(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        packed = {member.name.partition("/")[2]: archive.extractfile(member).read() for member in archive if member.isfile()}
    wanted = {"LICENSE": ROOT / "LICENSE", "README.md": ROOT / "python" / "README.md"}
    wanted |= {f"proto/{path.relative_to(PROTOS)}": path for path in (PROTOS / "outrider").rglob("*.proto")}
    assert len(wanted) > 5
    assert {name: packed.get(name) for name in wanted} == {name: path.read_bytes() for name, path in wanted.items()}


def test_the_sources_alone_make_the_same_wheel(rebuilt: Path, wheel: Path) -> None:
    assert members(rebuilt) == members(wheel)


def test_that_wheel_works_in_an_environment_of_its_own(rebuilt: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", "own", folder=tmp_path)
    python = tmp_path / "own" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index", "--no-deps", rebuilt, folder=tmp_path)
    own, = (tmp_path / "own").glob("lib/*/site-packages")
    # gRPC and protobuf are those of the tests' environment. They come after what is installed here.
    (own / "tests.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    use = "import outrider, outrider.v1.inference_pb2_grpc as _; outrider.Client('a:1'); print(outrider.__file__, outrider.__version__)"
    version = re.search(r'^version = "(.*)"$', (ROOT / "python" / "pyproject.toml").read_text(), re.M)[1]
    assert run(python, "-c", use, folder=tmp_path) == f"{own / 'outrider' / '__init__.py'} {version}\n"
