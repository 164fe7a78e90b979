"""deploy/gpu/mps, with a fake daemon that only starts and ends: its errors where it cannot work, and that it can be called twice."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("bash", "cat", "env", "grep", "mkdir", "rm", "sed", "sleep", "timeout")

# Like NVIDIA's, it writes its process into the folder of pipes and takes commands on its input. %s: what else it does.
CONTROL = """#!/usr/bin/env bash
pid=$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid
if [[ ${1:-} == -d ]]; then
  %s
  sleep 60 </dev/null >/dev/null 2>&1 &
  echo $! >"$pid"
elif read -r word && [[ $word == quit ]]; then
  kill "$(<"$pid")"
  rm "$pid"
fi
"""


class Host:
    """A machine with the usual tools, and with those of NVIDIA's that a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.pipes, self.logs, self.programs = folder / "pipes", folder / "logs", folder / "programs"
        self.programs.mkdir()
        for tool in TOOLS:
            (self.programs / tool).symlink_to(shutil.which(tool))

    def put(self, name: str, script: str) -> None:
        (self.programs / name).write_text(script)
        (self.programs / name).chmod(0o755)

    def put_gpu(self) -> None:
        self.put("nvidia-smi", "#!/usr/bin/env bash\necho 'GPU 0: NVIDIA H200 (UUID: GPU-1)'\n")

    def mps(self, *arguments: str) -> tuple[int, str]:
        """The exit code, and the line on stdout or stderr."""
        done = subprocess.run([ROOT / "deploy/gpu/mps", *arguments], capture_output=True, text=True, timeout=60,
                              env={"PATH": str(self.programs), "CUDA_MPS_PIPE_DIRECTORY": str(self.pipes),
                                   "CUDA_MPS_LOG_DIRECTORY": str(self.logs)})
        assert not (done.stdout and done.stderr)
        text = done.stdout + done.stderr
        assert text.count("\n") == 1 or arguments == ("--help",), text
        return done.returncode, text


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    pid = host.pipes / "nvidia-cuda-mps-control.pid"
    if pid.is_file():
        os.kill(int(pid.read_text()), 9)


def test_without_the_driver_it_says_what_is_missing(host: Host) -> None:
    assert host.mps("start") == (1, "mps: nvidia-cuda-mps-control is not installed: it comes with NVIDIA's driver\n")
    assert host.mps("status") == (3, "mps: does not run\n")
    assert host.mps("stop") == (0, "mps: does not run\n")
    assert not host.pipes.exists()


def test_without_a_gpu_it_starts_nothing(host: Host) -> None:
    host.put("nvidia-cuda-mps-control", CONTROL % "")
    error = "mps: there is no GPU here: nvidia-smi lists none\n"
    assert host.mps("start") == (1, error)
    host.put("nvidia-smi", "#!/usr/bin/env bash\necho 'No devices were found'\n")
    assert host.mps("start") == (1, error)
    assert host.mps("status")[0] == 3


def test_it_can_be_started_and_stopped_twice(host: Host) -> None:
    host.put("nvidia-cuda-mps-control", CONTROL % "")
    host.put_gpu()
    code, started = host.mps("start")
    found = re.fullmatch(rf"mps: started, process (\d+), CUDA_MPS_PIPE_DIRECTORY={host.pipes}\n", started)
    assert code == 0 and found, started
    pid = found[1]
    assert host.mps("start") == (0, f"mps: runs already, process {pid}\n")
    assert host.mps("status") == (0, f"mps: runs, process {pid}, CUDA_MPS_PIPE_DIRECTORY={host.pipes}\n")
    assert host.mps("stop") == (0, "mps: stopped\n")
    assert host.mps("stop") == (0, "mps: does not run\n")
    assert host.mps("status")[0] == 3


def test_a_daemon_that_does_not_start_is_said(host: Host) -> None:
    host.put("nvidia-cuda-mps-control", CONTROL % "exit 1")
    host.put_gpu()
    assert host.mps("start") == (1, f"mps: the daemon did not start: see {host.logs}/control.log\n")


def test_a_folder_that_cannot_be_made_is_named(host: Host) -> None:
    host.put("nvidia-cuda-mps-control", CONTROL % "")
    host.put_gpu()
    host.logs.write_text("")
    assert host.mps("start") == (1, f"mps: cannot make {host.logs}\n")


def test_what_a_dead_daemon_left_is_no_daemon(host: Host) -> None:
    host.pipes.mkdir()
    (host.pipes / "nvidia-cuda-mps-control.pid").write_text("4194305\n")  # larger than any process id
    assert host.mps("status")[0] == 3
    (host.pipes / "nvidia-cuda-mps-control.pid").unlink()


@pytest.mark.parametrize("arguments, error", [
    ((), "'' is none of start, stop and status"),
    (("restart",), "'restart' is none of start, stop and status"),
    (("start", "now"), "one of start, stop and status, and nothing else"),
])
def test_bad_arguments_are_refused(host: Host, arguments: tuple[str, ...], error: str) -> None:
    assert host.mps(*arguments) == (1, f"mps: {error} (--help explains them)\n")


def test_help_names_each_command(host: Host) -> None:
    code, text = host.mps("--help")
    assert code == 0 and all(f"\n  {command} " in text for command in ("start", "stop", "status")) and "set -e" not in text
