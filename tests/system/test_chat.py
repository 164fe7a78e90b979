"""`outrider chat` in a terminal and without one, and `outrider generate --chat`."""

import os
import pty
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import BIN, PATIENCE, Cluster, cluster, eventually, inference_pb2, request
from http_clients import chat_folder

PROMPT = ">>> "
AT_PROMPT = "(?m)^>>> "  # written again when one line of the history replaces another
SHORT = ("--temperature", "0", "--max-tokens", "12", "--ignore-eos")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The shipped pair with a chat template."""
    with cluster(coordinator=("--tokenizer", str(chat_folder(tmp_path_factory.mktemp("tokenizer"))))) as c:
        yield c


def answer_to(c: Cluster, *messages: tuple[str, str], max_tokens: int = 12) -> str:
    wanted = request("", temperature=0, max_tokens=max_tokens, ignore_eos=True)
    wanted.chat.messages.extend(inference_pb2.ChatMessage(role=role, content=content) for role, content in messages)
    return "".join(chunk_text(chunk) for chunk in c.stub.Generate(wanted, timeout=PATIENCE))


def chunk_text(chunk: inference_pb2.GenerateResponse) -> str:
    return "".join(token.text for token in chunk.tokens)


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, *arguments: str, home: Path) -> None:
        self.screen = ""
        ours, theirs = pty.openpty()
        self.keys = ours
        variables = os.environ | {"HOME": str(home), "XDG_STATE_HOME": "", "TERM": "xterm", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
        # Not by preexec_fn: it makes Popen fork, and gRPC's handlers of forks sometimes end the child.
        self.popen = subprocess.Popen(["setsid", "--ctty", BIN / "outrider", *arguments],
                                      stdin=theirs, stdout=theirs, stderr=theirs, env=variables)
        os.close(theirs)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while piece := os.read(self.keys, 4096):
                self.screen += piece.decode(errors="replace")
        except OSError:  # the program has ended
            pass

    def press(self, keys: str) -> None:
        os.write(self.keys, keys.encode())

    def wait_for(self, pattern: str, times: int = 1) -> None:
        eventually(lambda: len(re.findall(pattern, self.text())) >= times or self.popen.poll() is not None, repr(pattern))
        assert len(re.findall(pattern, self.text())) >= times, self.text()

    def text(self) -> str:
        """The output without the terminal's control sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.screen).replace("\r", "")

    def ask(self, line: str) -> str:
        """Types a line, and returns the output up to the next prompt."""
        prompts = len(re.findall(AT_PROMPT, self.text()))
        self.press(line + "\n")
        self.wait_for(AT_PROMPT, prompts + 1)
        # A line that is typed before the editor has the terminal is shown twice, as in a shell.
        return self.text().rsplit(PROMPT, 2)[1].rpartition(line + "\n")[2].rstrip("\n")


@pytest.fixture
def terminal(served: Cluster, tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal("chat", "--address", served.coordinator.address, *SHORT, home=tmp_path)
    opened.wait_for(AT_PROMPT)
    yield opened
    opened.popen.kill()
    opened.popen.wait()


def test_the_model_is_told_the_conversation_so_far(served: Cluster, terminal: Terminal) -> None:
    first = answer_to(served, ("user", "Who comes?"))
    assert terminal.ask("Who comes?") == first.rstrip("\n")
    then = ("user", "Who comes?"), ("assistant", first), ("user", "Où ça?")
    assert terminal.ask("Où ça?") == answer_to(served, *then).rstrip("\n")
    assert terminal.ask("/clear") == ""
    assert terminal.ask("/system You tell stories.") == ""
    assert terminal.ask("Who comes?") == answer_to(served, ("system", "You tell stories."), ("user", "Who comes?")).rstrip("\n")


def test_lines_that_are_pasted_are_one_question(served: Cluster, terminal: Terminal) -> None:
    terminal.press("One line\nand another\n")
    terminal.wait_for(AT_PROMPT, 2)
    answer = answer_to(served, ("user", "One line\nand another"))
    assert terminal.text().rsplit(PROMPT, 1)[0].rstrip("\n").endswith(answer.rstrip("\n"))


def test_commands_say_what_they_do_not_understand(terminal: Terminal) -> None:
    assert terminal.ask("/stats") == "there is no answer yet"
    terminal.ask("Who comes?")
    assert re.match(r"12 tokens, .* tokens a call; ", terminal.ask("/stats"))
    assert terminal.ask("/drafter none") == ""
    terminal.ask("Who comes?")
    assert terminal.ask("/stats").endswith("nothing was drafted")
    assert terminal.ask("/drafter best").startswith("error: 'best' is no drafter; there are: ")
    assert terminal.ask("/temperature warm") == "error: 'warm' is not a temperature: a number from 0 on"
    assert terminal.ask("/temperature -1") == ""
    assert "temperature" in terminal.ask("Who comes?")
    assert terminal.ask("/bye") == "error: no command /bye; /help lists them"
    assert "/drafter NAME" in terminal.ask("/help")


def test_ctrl_c_ends_an_answer_and_ctrl_d_the_program(served: Cluster, tmp_path: Path) -> None:
    terminal = Terminal("chat", "--address", served.coordinator.address, "--temperature", "0", "--ignore-eos", home=tmp_path)
    terminal.wait_for(AT_PROMPT)
    terminal.press("Tell me all\n")
    terminal.wait_for("Tell me all\n.+")
    terminal.press("\x03")
    terminal.wait_for(AT_PROMPT, 2)
    terminal.press("\x03")  # no answer runs
    terminal.wait_for(AT_PROMPT, 3)
    terminal.press("\x10\n")  # the previous line once more
    terminal.wait_for("Tell me all\n.+", 2)
    terminal.press("\x03")
    terminal.wait_for(AT_PROMPT, 4)
    terminal.press("\x04")
    assert terminal.popen.wait(PATIENCE) == 0
    assert "Tell me all" in (tmp_path / ".local/state/outrider/history").read_text().replace("\\040", " ")
    served.wait_idle()


def test_it_ends_when_it_is_told_to(terminal: Terminal) -> None:
    terminal.popen.send_signal(signal.SIGTERM)
    assert terminal.popen.wait(PATIENCE) == 128 + signal.SIGTERM


@pytest.mark.parametrize("command", [["chat"], ["generate", "--chat"]], ids=" ".join)
def test_a_text_that_is_piped_in_is_one_question(served: Cluster, command: list[str]) -> None:
    done = subprocess.run([BIN / "outrider", *command, "--address", served.coordinator.address, *SHORT, "--system", "You tell stories."],
                          input="One line\nand another\n", text=True, capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout == answer_to(served, ("system", "You tell stories."), ("user", "One line\nand another")) + "\n"


def test_a_question_that_is_refused_ends_it_where_there_is_no_terminal(served: Cluster) -> None:
    done = subprocess.run([BIN / "outrider", "chat", "--address", served.coordinator.address, "--temperature", "-1"], input="Hello",
                          text=True, capture_output=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (1, "\n")
    assert done.stderr == "error: sampling.temperature: -1; allowed: [0, 100]\n"
