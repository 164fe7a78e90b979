"""A flag that is given empty, as by a script's unset variable, does not take the next flag, which may be a security flag."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from certificates import Authority, tls_flags
from harness import DRAFT_MODEL, TARGET_MODEL, Process, eventually, refusal, reserve_address, with_defaults
from help_page import flags_of, takes_a_value
from http_clients import status_of

PORTS = {"--listen": "127.0.0.1:0", "--metrics-listen": "127.0.0.1:0"}
MODEL = {"--model": str(DRAFT_MODEL), "--kv-blocks": "64", "--threads": "1"}
STARTS = {
    "outrider-coordinator": PORTS | {"--http-listen": "127.0.0.1:0", "--tokenizer": str(TARGET_MODEL)},
    "outrider-target": PORTS | MODEL,
    "outrider-draft": PORTS | MODEL,
    "outrider-pair": {"--metrics-listen": "127.0.0.1:0", "--kv-blocks": "64", "--threads": "1"} | {
        f"--{of}-{name}": value for of in ("target", "draft") for name, value in (("model", str(DRAFT_MODEL)), ("listen", "127.0.0.1:0"))},
}


def next_flags(program: str, flag: str, tls: tuple[Path, Path]) -> list[str]:
    """The flags after `flag`. The last is a security flag that alone keeps the program from starting."""
    if flag in ("--tls-cert", "--tls-key"):
        return ["--target-listen=0.0.0.0:0" if program == "outrider-pair" else "--listen=0.0.0.0:0"]
    return [*tls_flags(*tls), "--tls-client-ca=/nowhere" if flag == "--token-file" else "--token-file=/nowhere"]


def is_named(flag: str, line: str) -> bool:
    # In a process with two models, an error names the model. An error about a file names its path, which is empty here.
    return flag in line or re.sub("^--(target|draft)-", r"\1: --", flag) in line or flag.endswith(("model", "--tokenizer", "--heads"))


@pytest.mark.parametrize("program", STARTS)
def test_no_flag_that_is_given_empty_takes_the_next(program: str, authority: Authority) -> None:
    tls = authority.sign("server")
    flags = [flag for flag, described in flags_of(program).items() if takes_a_value(described)]
    assert {*STARTS[program], "--tls-cert", "--tls-client-ca", "--token-file", "--health-listen", "--log-level", "--drain"} <= {*flags}
    assert program != "outrider-coordinator" or {"--rule", "--schedule", "--drafter", "--generation-config"} <= {*flags}, "of a few words"
    following = {flag: next_flags(program, flag, tls) for flag in flags}
    with ThreadPoolExecutor(4) as pool:
        lines = pool.map(lambda flag: refusal(program, *with_defaults(STARTS[program], [f"{flag}=", *following[flag]])), flags)
    for flag, line in zip(flags, lines):
        last = following[flag][-1]
        assert last not in line, f"{flag} took it: {line}"
        assert last.partition("=")[2] in line or is_named(flag, line), f"{flag}: {line}"


@pytest.mark.parametrize("empty", ["--draft=", "--health-listen="])
def test_an_empty_flag_takes_nothing_from_the_next(empty: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    address, http = reserve_address(), reserve_address()
    process = Process("outrider-coordinator", "--tokenizer", str(TARGET_MODEL), "--target", "127.0.0.1:1", "--http-listen", http,
                      "--listen", address, "--http-tls-terminated", "--metrics-listen", "127.0.0.1:0", empty, f"--http-token-file={keys}")
    try:
        assert eventually(lambda: status_of(f"http://{http}/v1/models"), "it answers") == 401
    finally:
        process.kill()
