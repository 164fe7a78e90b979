"""`outrider up` as a process, and other commands of the same program."""

import contextlib
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from harness import BIN, DEVICE, DRAFT_MODEL, DTYPE, PATIENCE, TARGET_MODEL, Process, eventually, with_defaults

SERVICES = ("coordinator", "draft", "target")
TARGET = {"--target-model": str(TARGET_MODEL), "--device": DEVICE, "--dtype": DTYPE, "--threads": "1"}
PAIR = TARGET | {"--draft-model": str(DRAFT_MODEL)}
FREE = {flag: "127.0.0.1:0" for flag in ("--listen", "--draft-listen", "--target-listen", "--metrics-listen",
                                         "--draft-metrics-listen", "--target-metrics-listen", "--http-listen")}
SHORT = ("--temperature", "0", "--max-tokens", "8")


class Up(Process):
    """`outrider up`, on free ports and with `models` unless the flags say otherwise."""

    def __init__(self, *flags: str, models: dict[str, str] = PAIR, **variables: str) -> None:
        super().__init__("outrider", "up", *with_defaults(models | FREE, flags), stdout_too=True, variables=variables)

    def wait_for_line(self, pattern: str, times: int = 1) -> re.Match[str]:
        """Waits for `times` lines that match from their beginning; returns the last match."""
        def found() -> list[re.Match[str]]:
            return [match for line in list(self.lines) if (match := re.match(pattern, line))]

        eventually(lambda: len(found()) >= times or self.popen.poll() is not None, f"a line {pattern!r}")
        matches = found()
        assert len(matches) >= times, "\n".join(self.lines)
        return matches[times - 1]

    def wait_serving(self) -> None:
        self.wait_for_line("Ctrl-C stops")

    def address(self, service: str) -> str:
        return self.wait_for_line(rf"{service} +(\S+)")[1]

    def metrics_address(self, service: str) -> str | None:
        match = re.search(r"http://(\S+)/metrics", self.wait_for_line(rf"{service} +\S+.*").string)
        return match and match[1]

    def pids(self) -> dict[str, int]:
        """The process ids of its running children, by service."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                name = Path((entry / "cmdline").read_bytes().split(b"\0")[0].decode()).name
                if int(fields[1]) == self.popen.pid and fields[0] != "Z":
                    found[name.removeprefix("outrider-")] = int(entry.name)
        return found

    def generate(self, *flags: str) -> subprocess.CompletedProcess[str]:
        return outrider("generate", "--address", self.address("coordinator"), *SHORT, *flags, "Once upon a time")


@contextlib.contextmanager
def up(*flags: str, serving: bool = True, models: dict[str, str] = PAIR, end: signal.Signals = signal.SIGINT,
       **variables: str) -> Iterator[Up]:
    """Runs `outrider up`, and waits until it serves if `serving`. If the body succeeds, Ctrl-C or SIGTERM must end it in an orderly way."""
    process = Up(*flags, models=models, **variables)
    try:
        if serving:
            process.wait_serving()
        yield process
        process.popen.send_signal(end)
        assert process.wait_end() == (0 if end == signal.SIGTERM else 128 + end), "\n".join(process.lines)
        assert process.lines[-1] == "stopping"
    finally:
        process.kill()


def outrider(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN / "outrider", *arguments], capture_output=True, text=True, timeout=PATIENCE,
                          stdin=subprocess.DEVNULL)
