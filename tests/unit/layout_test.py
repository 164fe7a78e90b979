"""The rules of the tree: which code may include which, what does without protobuf and gRPC, where links lead, and that nothing
unfinished is left behind.

Every check takes a Tree and returns a list of problems. Each check runs on this repository, and on a made-up tree that it
must refuse.
"""

import os
import pathlib
import posixpath
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# A folder may include only itself, folders of earlier rows, and folders before it in its row. Services may not include
# each other, but for the pair, which is two of them.
ORDER = [
    ["proto", "common/spec", "common/kv", "common/gguf", "common/text", "common/grammar"],
    ["common/engine", "common/rpc", "common/obs", "common/net", "common/serve"],
    ["draft_service", "target_service", "pair_service"],
    ["coordinator/servers", "coordinator/admission", "coordinator/generation", "coordinator/policy", "coordinator/decode",
     "coordinator/api", "coordinator/openai", "coordinator/vllm", "coordinator"],
    ["client/sdk", "client/cli"],
]
SERVICES = {"draft_service": set(), "target_service": set(), "pair_service": {"draft_service", "target_service"},
            "coordinator": set()}
# Folders that are built without protobuf and gRPC too (OUTRIDER_CORE_ONLY), as are the services' samplers.
CORE = {"common/spec", "common/kv", "common/gguf", "common/text", "common/grammar", "common/engine"}
FREE = {"tests", "bench"}  # may include everything
# The engine's backends, each with the files outside it that may include its headers; and the part that knows no other part.
BACKENDS = {"common/engine/cpu": {"common/engine/backend.cc"}, "common/engine/cuda": set(), "common/engine/torch": set()}
DECODER = "common/engine/decoder"

CPP = (".h", ".cc", ".inc", ".cu", ".cuh")
PROGRAM = CPP + (".py", ".proto", ".cmake", ".sh", ".md", ".txt", ".yaml", ".yml", ".toml")
PROGRAM_NAMES = {"Makefile", "Dockerfile", "run", ".clang-format", ".clang-tidy", ".gitignore", "CMakePresets.json"}
WIRE = re.compile(r"(google/protobuf|google/rpc|grpc|grpcpp)/|.*\.pb\.h$")
LIBTORCH = re.compile(r"(ATen|c10|caffe2|torch)/")


class Tree(dict):
    """Maps paths from the root to texts."""

    binaries = frozenset()  # paths of files that are no text

    def of(self, *suffixes):
        return {path: text for path, text in self.items() if path.endswith(suffixes)}

    @staticmethod
    def read(root):
        """Reads the tracked files, and new ones that git does not ignore, as far as they are text."""
        listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=root, check=True,
                                capture_output=True, text=True).stdout.split("\0")
        tree = Tree()
        for path in filter(None, listed):
            try:
                tree[path] = (root / path).read_text()
            except UnicodeDecodeError:
                tree.binaries |= {path}
            except (FileNotFoundError, IsADirectoryError):
                continue
        return tree


def folder_of(path):
    parts = path.split("/")
    deep = len(parts) > 2 and parts[0] in {"common", "coordinator", "client"}
    return "/".join(parts[:2]) if deep else parts[0]


def includes(tree, path):
    """The includes of a file, in order: (name, path in this tree or None)."""
    found = []
    for name in re.findall(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', tree[path], re.M):
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
        found.append((name, name if name in tree else beside if beside in tree else None))
    return found


def chain_to(tree, start, pattern):
    """The shortest chain of includes from `start` to an outside header that matches, or None."""
    seen, todo = {start}, [[start]]
    while todo:
        chain = todo.pop(0)
        for name, own in includes(tree, chain[-1]):
            if own is None and pattern.match(name):
                return chain + [name]
            if own is not None and own not in seen:
                seen.add(own)
                todo.append(chain + [own])
    return None


def allowed(folder):
    """The folders that `folder` may include, itself among them."""
    flat = [name for row in ORDER for name in row]
    left = set(flat[: flat.index(folder) + 1])
    service = folder.split("/")[0]
    if service in SERVICES:
        left = {other for other in left if other.split("/")[0] not in SERVICES.keys() - SERVICES[service] - {service}}
    if folder in CORE:
        left -= {"proto"}
    return left


def wrong_dependencies(tree):
    wrong = []
    for path in tree.of(*CPP):
        folder = folder_of(path)
        if folder in FREE:
            continue
        if not any(folder in row for row in ORDER):
            wrong.append(f"{path}: the folder {folder} has no place in the order")
            continue
        for name, own in includes(tree, path):
            target = folder_of(own) if own else "proto" if name.endswith(".pb.h") else None
            if target and target not in allowed(folder):
                wrong.append(f"{path}: {folder} must not include {target} ({name})")
    return wrong


def reached_backends(tree):
    """Only a backend includes its own headers: other code uses Backend and Model. The decoder's files know no backend."""
    wrong = []
    for path in tree.of(*CPP):
        for name, own in includes(tree, path) if folder_of(path) not in FREE else ():
            target, here = posixpath.dirname(own or ""), posixpath.dirname(path)
            private = target in BACKENDS and target != here and path not in BACKENDS[target]
            upwards = here == DECODER and target.startswith("common/engine") and target != DECODER
            if private or upwards:
                wrong.append(f"{path}: must not include {name}")
    return wrong


def wire_in_core(tree):
    """Direct includes, and those through the repository's own headers."""
    wrong = []
    for path in tree.of(*CPP):
        core = folder_of(path) in CORE or re.fullmatch(r"(draft|target)_service/\w+_sampler\.(h|cc)", path)
        chain = chain_to(tree, path, WIRE) if core else None
        if chain:
            wrong.append(f"{path}: reaches protobuf or gRPC by {' > '.join(chain)}")
    return wrong


def libtorch_elsewhere(tree):
    """Only one plug-in may include libtorch, which never meets protobuf there, since the engine does without."""
    return [f"{path}: includes {name}" for path in tree.of(*CPP)
            if not path.startswith(("common/engine/torch/", "tests/unit/torch_"))
            for name, _ in includes(tree, path) if LIBTORCH.match(name)]


def long_files(tree):
    """A file has one subject; of more than 400 lines it has two."""
    folders = tuple(f"{folder}/" for row in ORDER for folder in row if folder != "proto")
    return [f"{path}: {text.count(chr(10))} lines, at most 400"
            for path, text in tree.of(*CPP).items() if path.startswith(folders) and text.count("\n") > 400]


def second_transports(tree):
    """Only one file may know the transport of items from the coordinator to the servers."""
    stubs = re.compile(r"outrider/v1/(draft|target)\.grpc\.pb\.h")
    inside = re.compile(r"coordinator/(servers|generation|policy|decode)/")
    return [f"{path}: includes {name}, as only coordinator/servers/channel.cc should"
            for path in tree.of(*CPP)
            if path.startswith("coordinator/") and path != "coordinator/servers/channel.cc"
            for name, _ in includes(tree, path)
            if stubs.match(name) or (inside.match(path) and re.match(r"grpc(pp)?/", name))]


def is_program(path):
    name = posixpath.basename(path)
    return name in PROGRAM_NAMES or path.endswith(PROGRAM) or path.startswith("scripts/")


def unfinished(tree):
    """Words of unfinished work. A gRPC stub is a stub in code; in a comment or in prose the word means something else."""
    anywhere = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b|\bnot (yet )?" r"implemented\b")
    in_prose = re.compile(r"\bst" r"ub(s|bed|bing)?\b", re.I)
    comment = re.compile(r"(?://|#|/\*|^\s*\*|<!--)(.*)")
    wrong = []
    for path, text in tree.items():
        if not is_program(path):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            prose = line if path.endswith(".md") else "".join(comment.findall(line))
            if anywhere.search(line) or in_prose.search(prose):
                wrong.append(f"{path}:{number}: {line.strip()}")
    return wrong


def machine_paths(tree):
    """Paths on somebody's machine. Inside the images that deploy/ makes, such paths are the image's own."""
    pattern = re.compile(r"(?<![\w.})*~$%-])/(ro" r"ot|wo" r"rk|fa" r"rm|tm" r"p|ho" r"me|Use" r"rs)(?![\w.-])")
    return [f"{path}:{number}: {line.strip()}"
            for path, text in tree.items() if is_program(path) and not path.startswith("deploy/")
            for number, line in enumerate(text.splitlines(), 1) if pattern.search(line)]


def unused_flags(tree):
    """Command-line options whose variable appears only where it is declared and where it is bound."""
    binding = re.compile(r'\b(?:add_(?:option|flag)\w*\(|AddNumber\(app,)\s*"([^"]+)",\s*(?:\w+(?:\.|->))*(\w+)')
    rest = binding.sub("", "\n".join(tree.of(*CPP).values()))
    return [f"{path}: {option} is never read"
            for path, text in tree.of(*CPP).items() for option, variable in binding.findall(text)
            if len(re.findall(rf"\b{variable}\b", rest)) < 2]


def cmake_files(tree):
    return {path: re.sub(r"#.*", "", text) for path, text in tree.items()
            if path.endswith(".cmake") or posixpath.basename(path) == "CMakeLists.txt"}


def globbed_sources(tree):
    """Patterns may find what is installed in the Python environment, but not sources in the tree."""
    source = re.compile(r"[*?].*\.(cc|cu|h|inc|proto)$|/\*$|^\*$")
    wrong = []
    for path, text in cmake_files(tree).items():
        patterns = [token for call in re.findall(r"\bfile\s*\(\s*GLOB(?:_RECURSE)?\b([^)]*)\)", text, re.I)
                    for token in re.findall(r'[^\s"]+', call) if not token.startswith("${OUTRIDER_VENV}")]
        if any(source.search(token) for token in patterns) or re.search(r"\baux_source_directory\b", text):
            wrong.append(f"{path}: sources are listed by name, not found by pattern")
    return wrong


def unbuilt_sources(tree):
    """Sources and protos that no CMake file above them names (protos with or without their suffix)."""
    named = [(f"/{posixpath.dirname(path)}".rstrip("/") + "/", "/" + re.sub(r"^.*\$\{\w+\}/", "", token))
             for path, text in cmake_files(tree).items() for token in re.findall(r'[^\s()";]+', text)]
    return [f"{path}: no CMake file names it"
            for path in tree.of(".cc", ".cu", ".proto")
            if not any(f"/{path}".startswith(folder) and f"/{path}".removesuffix(".proto").endswith(
                token.removesuffix(".proto")) for folder, token in named)]


def anchors(markdown):
    """The anchors that GitHub gives to the headings of a page. Repeated headings get a number."""
    found = []
    for heading in re.findall(r"^#+ (.+)$", re.sub(r"^ *```.*?^ *```", "", markdown, flags=re.M | re.S), re.M):
        anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        number = len([other for other in found if re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", other)])
        found.append(f"{anchor}-{number}" if number else anchor)
    return found


def broken_links(tree):
    """Broken relative links of pages, and missing pages of docs/ that other files name (but for tests, which make some up)."""
    code = re.compile(r"^ *```.*?^ *```|`[^`\n]*`", re.M | re.S)
    folders = {path[:slash] for path in tree.keys() | tree.binaries for slash in
               (match.start() for match in re.finditer("/", path))}
    wrong = []
    for path, text in tree.items():
        if path.endswith(".md"):
            targets = re.findall(r"\]\(([^)\s]+)\)", code.sub("", text))
            links = [(target, posixpath.dirname(path)) for target in targets if not re.match(r"\w+:", target)]
        elif path.startswith("tests/"):
            continue
        else:
            links = [(target, "") for target in re.findall(r"\bdocs/\w+\.md(?:#[\w-]+)?", text)]
        for target, folder in links:
            file, _, anchor = target.partition("#")
            file = posixpath.normpath(posixpath.join(folder, file)) if file else path
            if file not in tree.keys() | tree.binaries | folders:
                wrong.append(f"{path}: {target} leads to no file")
            elif anchor and anchor not in anchors(tree.get(file, "")):
                wrong.append(f"{path}: {target} leads to no section")
    return wrong


def unlisted_tests(tree):
    """Each file of tests that start processes must be in ctest's list."""
    listed = set(re.findall(r"\w+", " ".join(re.findall(r"foreach\(name IN ITEMS ([^)]*)\)", tree.get("tests/system/system.cmake", "")))))
    return [f"{path}: tests/system/system.cmake does not name it" for path in tree
            if (found := re.fullmatch(r"tests/(?:system|slow)/test_(\w+)\.py", path)) and found[1] not in listed]


def wrong_fault_table(tree):
    """The table of faults must have each number once, and each row must name tests that exist."""
    page = "docs/operations.md"
    rows = re.findall(r"^\| (\d+) \|(.*)$", tree.get(page, ""), re.M)
    if [int(number) for number, _ in rows] not in ([], list(range(1, 45))):
        return [f"{page}: the rows of faults are {', '.join(number for number, _ in rows)}"]
    known = {name for path, text in tree.of(".py").items() if path.startswith("tests/system/test_")
             for name in re.findall(r"^def (test_\w+)", text, re.M)}
    wrong = []
    for number, row in rows:
        tests = re.findall(r"`(test_\w+)`", row)
        wrong += [f"{page}: fault {number}: there is no {name}" for name in tests if name not in known]
        wrong += [] if tests else [f"{page}: fault {number} names no test"]
    return wrong


def left_behind(tree):
    """The context of an image's build must hold all folders that are built there: not tests and benchmarks."""
    listed = [line[1:] for line in tree.get(".dockerignore", "").splitlines() if line.startswith("!")]
    folders = re.findall(r"add_subdirectory\(([\w/]+)", tree.get("CMakeLists.txt", ""))
    return [f"CMakeLists.txt: .dockerignore leaves {folder} behind" for folder in folders
            if folder not in FREE and not any(f"{folder}/".startswith(f"{kept}/") for kept in listed)]


CHECKS = [wrong_dependencies, reached_backends, wire_in_core, libtorch_elsewhere, second_transports, long_files, unfinished, machine_paths,
          unused_flags, globbed_sources, unbuilt_sources, broken_links, unlisted_tests, wrong_fault_table,
          left_behind]


@pytest.fixture(scope="module")
def repository():
    return Tree.read(ROOT)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_repository_passes(check, repository):
    assert check(repository) == []


def test_programs_can_be_run(repository):
    """A file that names its interpreter must be executable, unless it is there to be sourced."""
    programs = [path for path in repository if repository[path].startswith("#!") and not path.endswith(".sh")]
    assert "scripts/install" in programs
    assert [path for path in programs if not os.access(ROOT / path, os.X_OK)] == []


def test_the_repository_is_read(repository):
    assert "CMakeLists.txt" in repository and len(cmake_files(repository)) > 10
    for row in ORDER:
        for folder in row:
            assert any(path.startswith(folder + "/") for path in repository), f"{folder} is gone: ORDER is out of date"


def test_new_files_are_read_and_ignored_ones_are_not(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("ignored.cc\n")
    (tmp_path / "ignored.cc").write_text("")
    (tmp_path / "new.cc").write_text("int x;")
    (tmp_path / "weights.bin").write_bytes(b"\xff\xfe\x00")
    assert Tree.read(tmp_path) == {".gitignore": "ignored.cc\n", "new.cc": "int x;"}


FAULTS = "\n".join(f"| {number} | a fault | `test_a_fault` |" for number in range(1, 45))

# A small tree that follows every rule, in the shapes that a careless check would take for an offence.
GOOD = {
    "CMakeLists.txt": 'file(GLOB WHEELS "${VENV}/lib/python3*/nvidia")  # file(GLOB S *.cc) would be refused\n'
                      "add_subdirectory(common/spec)\nadd_subdirectory(proto ${as_needed})\nadd_subdirectory(tests)\n",
    ".dockerignore": "*\n!common\n!proto\n",
    "proto/CMakeLists.txt": 'file(GLOB STATUS "${OUTRIDER_VENV}/lib/python3*/rpc/status.proto")\n'
                            "generate(outrider/v1/target grpc)",
    "proto/outrider/v1/target.proto": 'syntax = "proto3";',
    "common/spec/CMakeLists.txt": "outrider_library(spec SOURCES verify.cc)",
    "common/spec/types.h": "#include <vector>",
    "common/spec/verify.cc": '#include "types.h"\n#include "absl/status/status.h"',
    "common/kv/pool.h": '#include "common/spec/types.h"',
    "common/engine/CMakeLists.txt": "outrider_library(engine SOURCES backend.cc cpu/model.cc decoder/llama.cc)",
    "common/engine/runner.h": '#include "common/kv/pool.h"',
    "common/engine/backend.cc": '#include "common/engine/cpu/model.h"\n#include "common/engine/runner.h"',
    "common/engine/cpu/model.h": "",
    "common/engine/cpu/model.cc": '#include "common/engine/cpu/model.h"\n#include "common/engine/decoder/spec.h"',
    "common/engine/cuda/limits.h": '#include "common/engine/runner.h"',
    "common/engine/torch/CMakeLists.txt": "add_library(outrider_torch MODULE decoder.cc)",
    "common/engine/torch/decoder.cc": '#include <ATen/ATen.h>\n#include "common/engine/decoder/spec.h"',
    "tests/unit/torch.cmake": "outrider_unit_test(torch_test SOURCES torch_step_test.cc)",
    "tests/unit/torch_step_test.cc": "#include <ATen/ATen.h>",
    "common/engine/decoder/spec.h": "",
    "common/engine/decoder/llama.cc": '#include "common/engine/decoder/spec.h"',
    "target_service/CMakeLists.txt": "add_executable(outrider-target ${CMAKE_CURRENT_SOURCE_DIR}/main.cc)",
    "target_service/main.cc": '#include <grpcpp/grpcpp.h>\n#include "outrider/v1/target.pb.h"\n'
                              '#include "common/engine/runner.h"\n'
                              'int stop; app.add_option("--stop",\n flags.server.stop, "");\n'
                              "Use(flags.stop);\nauto stub = Target::NewStub(channel);",
    "pair_service/CMakeLists.txt": "outrider_program(outrider-pair SOURCES main.cc)",
    "pair_service/main.cc": '#include "target_service/service.h"\n#include "draft_service/service.h"',
    "draft_service/service.h": "",
    "target_service/service.h": "",
    "coordinator/CMakeLists.txt": "outrider_library(coordinator SOURCES servers/channel.cc)",
    "coordinator/servers/channel.cc": '#include <grpcpp/grpcpp.h>\n#include "outrider/v1/target.grpc.pb.h"',
    "coordinator/api/inference_service.h": "#include <grpcpp/grpcpp.h>",
    "tests/CMakeLists.txt": "include(unit/engine.cmake)",
    "tests/unit/engine.cmake": "outrider_unit_test(engine_test SOURCES unit/engine_test.cc)",
    "tests/unit/engine_test.cc": '#include "common/engine/cuda/limits.h"\n#include "target_service/service.h"',
    "scripts/test": 'd=$(mktemp -d "${TMPDIR}/x.XXXXXX"); cp build/work/a http://example.com/work "$d/tmp/a"',
    "docs/notes.md": "# Notes\nA caution in proof/work is fine, and so is /v1/metrics.\n## `--stop`, and when\n"
                     "[Here](#--stop-and-when), [there](../common/spec), [elsewhere](https://example.com/a.md#b).\n"
                     "```\n# No heading\n[no link](gone.md)\n```\n## Notes\n[twice](notes.md#notes-1)\n",
    "bench/notes.py": '"""See docs/notes.md#notes."""',
    "docs/operations.md": FAULTS,
    "tests/system/system.cmake": "foreach(name IN ITEMS faults greedy)\nendforeach()",
    "tests/system/test_faults.py": "def test_a_fault() -> None:",
}

BAD = [
    # Includes against the order.
    (wrong_dependencies, {"common/spec/a.h": '#include "common/kv/pool.h"'}),
    (wrong_dependencies, {"common/rpc/a.cc": '#include "common/obs/metrics.h"', "common/obs/metrics.h": ""}),
    (wrong_dependencies, {"common/kv/a.cc": '#include "../engine/runner.h"'}),
    (wrong_dependencies, {"common/engine/a.cc": "# include <client/sdk/client.h>", "client/sdk/client.h": ""}),
    (wrong_dependencies, {"client/sdk/a.cc": '#include "client/cli/flags.h"', "client/cli/flags.h": ""}),
    (wrong_dependencies, {"common/text/a.cc": '#include "outrider/v1/target.pb.h"'}),
    (wrong_dependencies, {"coordinator/a.cc": '#include "target_service/service.h"'}),
    (wrong_dependencies, {"target_service/a.cc": '#include "draft_service/service.h"'}),
    (wrong_dependencies, {"draft_service/a.cc": '#include "pair_service/x.h"', "pair_service/x.h": ""}),
    (wrong_dependencies, {"pair_service/a.cc": '#include "coordinator/servers/x.h"', "coordinator/servers/x.h": ""}),
    (wrong_dependencies, {"target_service/a.cc": '#include "coordinator/x.h"', "coordinator/x.h": ""}),
    (wrong_dependencies, {"coordinator/decode/a.h": '#include "coordinator/api/x.h"', "coordinator/api/x.h": ""}),
    (wrong_dependencies, {"util/a.cc": ""}),
    (wrong_dependencies, {"common/misc/a.h": ""}),
    # A backend's own headers: from outside, from another backend, by a path of its own; and includes upwards from the decoder.
    (reached_backends, {"common/engine/worker.cc": '#include "common/engine/cuda/limits.h"'}),
    (reached_backends, {"common/engine/worker.cc": '#include "cpu/model.h"'}),
    (reached_backends, {"common/engine/cuda/a.cc": '#include "common/engine/cpu/model.h"'}),
    (reached_backends, {"target_service/a.cc": '#include "common/engine/cpu/model.h"'}),
    (reached_backends, {"common/engine/decoder/a.cc": '#include "common/engine/runner.h"'}),
    # protobuf or gRPC: directly, through another header, and in a sampler.
    (wire_in_core, {"common/engine/a.cc": "#include <grpcpp/grpcpp.h>"}),
    (wire_in_core, {"common/kv/a.cc": '#include "common/rpc/b.h"', "common/rpc/b.h": '#include "common/rpc/c.h"',
                    "common/rpc/c.h": "#include <google/protobuf/message.h>"}),
    (wire_in_core, {"draft_service/draft_sampler.cc": '#include "common/rpc/b.h"',
                    "common/rpc/b.h": '#include "outrider/v1/x.pb.h"'}),
    # libtorch outside of its folder.
    (libtorch_elsewhere, {"common/engine/runner.h": "#include <ATen/ATen.h>"}),
    (libtorch_elsewhere, {"tests/unit/engine_test.cc": "# include <torch/torch.h>"}),
    (wire_in_core, {"common/engine/torch/a.cc": "#include <ATen/ATen.h>\n#include <grpcpp/grpcpp.h>"}),
    # A file that is too long.
    (long_files, {"common/kv/a.h": "int x;\n" * 401}),
    # A second file with the coordinator's transport.
    (second_transports, {"coordinator/api/a.cc": '#include "outrider/v1/target.grpc.pb.h"'}),
    (second_transports, {"coordinator/decode/a.h": "#include <grpcpp/grpcpp.h>"}),
    # Unfinished work.
    (unfinished, {"common/kv/a.h": "// TO" "DO: later"}),
    (unfinished, {"client/a.py": "pass  # FIX" "ME"}),
    (unfinished, {"coordinator/a.cc": "int x = 0;  // a st" "ub for now"}),
    (unfinished, {"docs/a.md": "Trees are st" "ubbed."}),
    (unfinished, {"coordinator/a.cc": 'return absl::UnimplementedError("not ' 'implemented");'}),
    # Paths on somebody's machine.
    (machine_paths, {"scripts/a": "cd /ro" "ot/outrider"}),
    (machine_paths, {"common/text/a.cc": 'Open("/tm" "p/vocabulary");'.replace('" "', "")}),
    (machine_paths, {"docs/a.md": "Run it in `/ho" "me/ada/outrider`."}),
    (machine_paths, {"CMakePresets.json": '{"dir": "/wo' 'rk/build"}'}),
    # A flag that nobody reads.
    (unused_flags, {"client/a.h": "int beam;\n#define ADD app.add_option(\"--beam\", beam)"}),
    (unused_flags, {"client/a.h": 'int beam;\nauto a = app.add_flag(\n    "--beam,-b", options->beam, "width");'}),
    # Sources found by a pattern, or in no list.
    (globbed_sources, {"client/CMakeLists.txt": 'file(GLOB SOURCES "*.cc")'}),
    (globbed_sources, {"client/CMakeLists.txt": "file(GLOB_RECURSE SOURCES\n  ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)"}),
    (globbed_sources, {"client/CMakeLists.txt": 'file(GLOB_RECURSE SOURCES "src/*")'}),
    (globbed_sources, {"client/more.cmake": "aux_source_directory(. SOURCES)"}),
    (unbuilt_sources, {"client/a.cc": ""}),
    (unbuilt_sources, {"client/verify.cc": ""}),  # the one in common/spec is another file
    (unbuilt_sources, {"proto/outrider/v1/draft.proto": "", "proto/more.cmake": "# outrider/v1/draft.proto"}),
    # Links to a page, a picture or a section that is not there, in a page and in a comment.
    (broken_links, {"docs/a.md": "[moved](runbooks.md)"}),
    (broken_links, {"docs/a.md": "![drawn](images/a.png)"}),
    (broken_links, {"docs/a.md": "[renamed](notes.md#note)"}),
    (broken_links, {"docs/a.md": "# Alone\n[twice](#alone-1)"}),
    (broken_links, {"docs/a.md": "```\n# Example\n```\n[no heading](#example)"}),
    (broken_links, {"bench/a.py": "# docs/moved.md says why"}),
    (unlisted_tests, {"tests/system/test_more.py": ""}),
    (unlisted_tests, {"tests/slow/test_laws.py": ""}),
    # A folder that an image lacks.
    (left_behind, {"CMakeLists.txt": "add_subdirectory(pair_service)"}),
    (left_behind, {"CMakeLists.txt": "add_subdirectory(protocol)"}),
    # A fault that is missing, one without a test, and one whose test is gone.
    (wrong_fault_table, {"docs/operations.md": FAULTS.replace("| 7 |", "| 8 |")}),
    (wrong_fault_table, {"docs/operations.md": FAULTS.replace("| 7 | a fault | `test_a_fault` |", "| 7 | a fault | |")}),
    (wrong_fault_table, {"docs/operations.md": FAULTS.replace("| 7 | a fault | `test_a_fault` |", "| 7 | a fault | `test_gone` |")}),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_good_tree_passes(check):
    assert check(Tree(GOOD)) == []


@pytest.mark.parametrize("check, offence", BAD, ids=[f"{check.__name__}-{n}" for n, (check, _) in enumerate(BAD)])
def test_an_offence_is_found(check, offence):
    wrong = check(Tree(GOOD | offence))
    assert len(wrong) == 1 and wrong[0].startswith(next(iter(offence))), wrong


def test_every_check_has_an_offence():
    assert {check for check, _ in BAD} == set(CHECKS)
