"""`outrider explain` shows what the services do."""

import json
import re
import subprocess

import pytest

from harness import BIN, PATIENCE

PROMPT = "The sea was calm that morning, and"
K = 3
JUDGED = re.compile(r"q\(x\) = (\S+)  p\(x\) = (\S+)  u = (\S+)  u q\(x\) = \S+ (<|>=) p\(x\): (accepted|rejected)")


def outrider(*arguments: str) -> str:
    done = subprocess.run([BIN / "outrider", *arguments], capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return done.stdout


def explained(*how: str) -> str:
    return outrider("explain", PROMPT, "--draft-tokens", str(K), *how)


@pytest.mark.parametrize("temperature", ["0", "1"])
def test_the_text_is_that_of_the_services(temperature: str) -> None:
    how = ("--temperature", temperature, "--seed", "5")
    said = explained(*how, "--rounds", "8")
    text, tokens = re.search(rf"\n({PROMPT}.+)\ntokens: (\d+), passes of the target: 9\n$", said, re.DOTALL).groups()
    # All of q is sent. The last round of an answer drafts as much as still fits.
    answer = json.loads(outrider("generate", PROMPT, *how, "--rule", "token", "--draft-tokens", str(K), "--draft-top-n", "4096", "--ignore-eos",
                                 "--max-tokens", str(int(tokens) + K + 1), "--json"))
    assert (PROMPT + answer["text"]).startswith(text)


def test_what_is_compared_decides() -> None:
    judged = JUDGED.findall(explained("--seed", "2", "--rounds", "20"))
    assert {verdict for *_, verdict in judged} == {"accepted", "rejected"}
    for q, p, u, sign, verdict in judged:
        assert (sign == "<") == (verdict == "accepted")
        assert (float(u) * float(q) < float(p) + 2e-4) if sign == "<" else (float(u) * float(q) > float(p) - 2e-4)


def test_it_can_be_repeated_and_another_seed_is_another_text() -> None:
    first = explained("--seed", "1")
    assert explained("--seed", "1") == first != explained("--seed", "3")


def test_models_that_do_not_go_together_are_refused() -> None:
    done = subprocess.run([BIN / "outrider", "explain", "a", "--draft-model", "nowhere"], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1 and re.fullmatch(r"error: no model at nowhere .*\n", done.stderr)
