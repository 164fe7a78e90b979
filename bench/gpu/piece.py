"""Shared by the pieces of bench/gpu/run: their context, their results, and how they run programs."""

import contextlib
import dataclasses
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# Values from the configurations of Llama 3.2, by the model's size.
LLAMA: dict[str, dict[str, int]] = {
    "3B": {"vocab_size": 128256, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
           "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128},
    "1B": {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
           "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64}}
# Their replacements in a dry run (bench/llama_shapes.h).
TINY: dict[str, dict[str, int]] = {
    "3B": {"vocab_size": 4096, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
           "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 128},
    "1B": {"vocab_size": 4096, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
           "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64}}
AT_ONCE = 8  # programs that run at once, if they are not timed


class Failed(Exception):
    """A piece could not run, or found a fault."""


class LeftOut(Exception):
    """A piece cannot run here; the message says why."""


@dataclasses.dataclass
class Result:
    outcome: str = "passed"
    rows: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # (label, figure)
    data: Any = None
    seconds: float = 0


@dataclasses.dataclass
class Done:
    """A command that has ended."""
    output: str = ""
    fault: str = ""  # empty: it succeeded


@dataclasses.dataclass
class Context:
    root: Path
    programs: Path
    gtest: Path
    out: Path
    scratch: Path
    device: str
    target: Path | None
    draft: Path | None
    quick: bool
    dry: bool
    deadline: float = 0  # of the current piece
    log: Path = Path()  # of the current piece

    @property
    def shapes(self) -> dict[str, dict[str, int]]:
        return TINY if self.dry else LLAMA

    @property
    def alphas(self) -> list[str]:
        """Acceptance rates of the pair."""
        return ["0.8"] if self.dry else ["0.6", "0.7", "0.8", "0.9"]

    @property
    def dtypes(self) -> list[str]:
        return ["bfloat16"] if self.dry else ["bfloat16", "fp8"]

    def patience(self, seconds: float) -> float:
        """The time limit for work of `seconds`. A dry run measures nothing, and its machine may be busy."""
        return 5 * seconds if self.dry else seconds

    def seconds_left(self) -> float:
        return max(1.0, self.deadline - time.monotonic())

    def run(self, *command: str | Path, **environment: str) -> str:
        """Returns the output of a command, which also goes to the log as it is written, and then to stdout. Raises Failed
        with its last line if it fails."""
        words = [str(word) for word in command]
        with self.log.open("a+", errors="replace") as log:
            begin = log.seek(0, os.SEEK_END)
            process = subprocess.Popen(words, cwd=self.root, env=os.environ | environment, stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                process.wait(timeout=self.seconds_left())
            finally:
                if process.returncode is None:
                    # This also kills the services that it started.
                    os.killpg(process.pid, 9)
                    process.wait()
                log.seek(begin)
                output = log.read()
                print(output, end="", flush=True)
        if process.returncode != 0:
            lines = output.strip().splitlines() or ["no output"]
            raise Failed(f"{Path(words[0]).name} ended with {process.returncode}: {lines[-1]}")
        return output

    def program(self, name: str, *arguments: str | Path) -> str:
        return self.run(self.programs / name, *arguments)

    def beside(self, commands: Mapping[str, Sequence[str | Path]], seconds: float) -> dict[str, Done]:
        """Runs commands concurrently, each with its own time limit and log, PIECE-NAME.log. The others
        continue when one fails."""
        def run(name: str) -> Done:
            log = self.log.with_name(f"{self.log.stem}-{name.replace('/', '-')}.log")
            log.unlink(missing_ok=True)
            end = min(self.deadline, time.monotonic() + self.patience(seconds))
            own = dataclasses.replace(self, log=log, deadline=end)
            try:
                return Done(own.run(*commands[name]))
            except subprocess.TimeoutExpired:
                return Done(log.read_text(errors="replace"), "out of time")
            except Failed as failure:
                return Done(log.read_text(errors="replace"), str(failure))

        with ThreadPoolExecutor(min(AT_ONCE, os.cpu_count() or 1)) as pool:
            return dict(zip(commands, pool.map(run, commands), strict=True))

    @property
    def tiny(self) -> list[str]:
        """bench_shape's flag for tiny models."""
        return ["--tiny"] if self.dry else []

    def pair(self) -> Path:
        """Generated weights of these shapes with chosen acceptance rates, written once."""
        return self._written("pair", "--alpha", *self.alphas)

    def random_pair(self) -> Path:
        """The same with random weights, all of which affect the logits."""
        return self._written("random", "--random")

    def _written(self, name: str, *flags: str) -> Path:
        folder = self.scratch / name
        self.program("bench_shape", "--pair", folder, "--write-only", *flags, *self.tiny)
        return folder


def needs(context: Context, *modules: str) -> None:
    """Raises LeftOut unless these Python modules and a GPU for them are available."""
    if context.dry:
        raise LeftOut(f"a dry run has no GPU for {modules[-1]}")
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise LeftOut(f"this Python has no {module}")


def python_piece(context: Context, script: str, *arguments: str | Path) -> Any:
    """Runs a script beside this file in its own process and returns its JSON."""
    file = context.scratch / f"{script}.json"
    file.unlink(missing_ok=True)
    context.run(sys.executable, Path(__file__).with_name(f"{script}.py"), *arguments, "--json", file,
                PYTHONDONTWRITEBYTECODE="1")
    return json.loads(file.read_text())


def plugin_folders(programs: Path) -> list[Path]:
    """Folders that may have plug-ins: in a pack, the scripts that start the programs are in another folder."""
    return [programs, programs.parent / "programs"]


@contextlib.contextmanager
def peak_memory(device: str) -> Iterator[list[int]]:
    """Samples the GPU's memory use in the meantime. At the end, the list's only element is the peak in MiB, 0 if
    unknown."""
    peak, ended = [0], threading.Event()
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits",
               f"--id={device.removeprefix('cuda:')}"]

    def watch() -> None:
        while not ended.wait(0.25):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode == 0 and done.stdout.strip().isdigit():
                peak[0] = max(peak[0], int(done.stdout))

    watcher = threading.Thread(target=watch)
    if shutil.which(command[0]) is None:
        ended.set()
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()
