"""`outrider up` and `outrider generate`: what they start, what they print, and how they react to failures."""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from xml.etree import ElementTree

import openai
import pytest

from certificates import TOKEN, Authority
from harness import DRAFT_MODEL, PATIENCE, TARGET_MODEL, eventually, refusal, running, start_coordinator, with_defaults
from test_startup import with_other_tokens
from up import FREE, PAIR, SERVICES, SHORT, TARGET, Up, outrider, up


def get(url: str) -> int:
    with urllib.request.urlopen(url, timeout=PATIENCE) as response:
        return response.status


# --- where it listens -----------------------------------------------------------------------------------------


def test_up_says_where_everything_is_and_there_it_is() -> None:
    with up(end=signal.SIGTERM) as u:
        assert u.pids().keys() == set(SERVICES)
        for service in SERVICES:
            assert not u.address(service).endswith(":0")
            assert get(f"http://{u.metrics_address(service)}/metrics") == 200
        assert get(u.wait_for_line(r"OpenAI's API: (http://\S+)/v1$")[1] + "/health") == 200
        # The commands that it suggests work as printed.
        for command in ("generate", "describe", "top"):
            line = u.wait_for_line(f"outrider {command} .*").string
            arguments = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', line)[1:]]
            done = outrider(*arguments, *(SHORT if command == "generate" else ()))
            assert done.returncode == 0, done.stderr
            assert "no answer" not in done.stdout
        children = u.pids().values()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "nothing is left behind")


def test_a_search_shows_its_texts_with_their_scores() -> None:
    with up() as u:
        done = u.generate("--beam-width", "4", "--beam-draft-width", "9", "--length-penalty", "0.5", "--beam-stop", "first", "--n", "2")
        assert done.returncode == 0, done.stderr
        scores = [float(score) for score in re.findall(r"^\[text \d, score (-\d+\.\d{4})\]$", done.stdout, re.MULTILINE)]
        assert len(scores) == 2 and scores[0] >= scores[1]
        assert len(re.findall("target calls", done.stderr)) == 1
        best = json.loads(u.generate("--beam-width", "4", "--length-penalty", "0.5", "--beam-stop", "first", "--json").stdout)
        assert best["score"] == pytest.approx(scores[0], abs=1e-4) and best["text"] in done.stdout
        refused = u.generate("--beam-width", "4", "--n", "5")
        assert refused.returncode == 1 and refused.stderr == "error: n: 5; allowed: 1 to 4, the width of the search\n"
        assert u.generate("--beam-stop", "first").returncode != 0


def test_an_answer_is_compared_with_plain_decoding() -> None:
    def compared(*how: str) -> subprocess.CompletedProcess[str]:
        return outrider("generate", "--address", address, "--max-tokens", "20", "--compare-plain", *how, "Once upon a time")

    with up() as u:
        address = u.address("coordinator")
        for how in (["--temperature", "0"], ["--rule", "coupled", "--seed", "7"]):
            done = compared("--draft-tokens", "4", *how)
            assert done.returncode == 0, done.stderr
            summary, plain, same = done.stderr.splitlines()
            assert "acceptance" in summary
            assert re.fullmatch(r"plain decoding: \d+ tokens, the first after .* s, then .* tokens/s; [\d.]+ times as fast with speculation", plain)
            assert same == "same text as plain decoding: yes"
        for how in (["--temperature", "1", "--seed", "7"], ["--rule", "coupled"], ["--temperature", "0", "--beam-width", "2"]):
            refused = compared(*how)
            assert refused.returncode == 1 and "--compare-plain" in refused.stderr and not refused.stdout


def test_the_rounds_of_an_answer_are_drawn(tmp_path: Path) -> None:
    file = tmp_path / "rounds.svg"
    with up() as u:
        how = ["--address", u.address("coordinator"), "--timeline", str(file), "--max-tokens", "20", "--ignore-eos"]
        done = outrider("generate", *how, "--temperature", "0", "--draft-tokens", "4", "--compare-plain", "Once upon a time")
        assert done.returncode == 0, done.stderr
        calls = re.search(r"(\d+) target calls", done.stderr)
        assert calls is not None
        picture = ElementTree.parse(file).getroot()
        titles = [str(title.text) for title in picture.iter("{http://www.w3.org/2000/svg}title")]
        assert len(titles) == int(calls[1]) + 20, "a round for each pass of the target, and one for each token of plain decoding"
        assert any("drafted 4, accepted" in title for title in titles)
        assert not any("drafted" in title for title in titles[int(calls[1]):])
        refused = outrider("generate", *how, "--beam-width", "2", "Once")
        assert refused.returncode == 1 and "--timeline" in refused.stderr and not refused.stdout


def test_the_api_of_up_asks_for_a_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first-key\nsecond-key\n")
    with up("--api-key-file", str(keys)) as u:
        url = u.wait_for_line(r"OpenAI's API: (http://\S+)/v1$")[1] + "/v1/models"

        def status(**headers: str) -> int:
            try:
                return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE).status
            except urllib.error.HTTPError as error:
                return error.code

        assert (status(), status(Authorization="Bearer third-key"), status(Authorization="Bearer second-key")) == (401, 401, 200)
        assert get(url.replace("/v1/models", "/health")) == 200
    assert "no-such-file" in outrider("up", "--api-key-file", str(tmp_path / "no-such-file")).stderr


def test_up_serves_with_tls_and_tokens(tmp_path: Path) -> None:
    authority, tokens = Authority(tmp_path / "ca"), tmp_path / "tokens"
    cert, key = map(str, authority.sign("up"))
    tokens.write_text(f"{TOKEN}\n")
    # All clients must use TLS. Draft and target stay on loopback, without TLS, whatever the variables say.
    with up("--listen", "0.0.0.0:0", "--http-listen", "0.0.0.0:0", "--token-file", str(tokens), OUTRIDER_TLS_CERT=cert,
            OUTRIDER_TLS_KEY=key) as u:
        address = u.address("coordinator").replace("0.0.0.0", "127.0.0.1")
        asked = ("generate", "--address", address, *SHORT, "Once upon a time", "--tls-ca", str(authority.ca))
        assert outrider(*asked, "--tls-token-file", str(tokens)).returncode == 0
        assert "token" in outrider(*asked).stderr
        assert outrider("health", "--address", address, "--tls-ca", str(authority.ca), "--tls-token-file", str(tokens)).stdout == "SERVING\n"
        assert outrider("health", "--address", address).returncode == 1
        url = u.wait_for_line(r"OpenAI's API: (https://\S+)/v1$")[1].replace("0.0.0.0", "127.0.0.1") + "/v1/models"
        trusting = ssl.create_default_context(cafile=str(authority.ca))
        asked_over_http = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
        assert urllib.request.urlopen(asked_over_http, timeout=PATIENCE, context=trusting).status == 200
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url, timeout=PATIENCE, context=trusting)
    refused = outrider("up", "--tls-cert", cert, "--tls-key", key, "--draft-listen", "0.0.0.0:0")
    assert refused.returncode == 1 and "--draft-listen: 0.0.0.0:0 can be reached from other hosts" in refused.stderr


def test_health_is_an_exit_code() -> None:
    with up(models=TARGET | {"--draft-model": "none"}) as u:
        for service in ("coordinator", "target"):
            for asked in ((), ("--service", "live")):
                done = outrider("health", "--address", u.address(service), *asked)
                assert (done.returncode, done.stdout) == (0, "SERVING\n")
        unknown = outrider("health", "--address", u.address("target"), "--service", "other")
        assert unknown.returncode == 1 and unknown.stderr.startswith(f"error: no answer from {u.address('target')}: ")
    with running(start_coordinator("127.0.0.1:1", "")) as [coordinator]:
        done = outrider("health", "--address", coordinator.address)
        assert (done.returncode, done.stdout) == (1, "NOT_SERVING\n")


def test_what_is_switched_off_is_not_spoken_of(tmp_path: Path) -> None:
    sockets = {service: f"unix:{tmp_path}/{service}.sock" for service in SERVICES}
    with up("--listen", sockets["coordinator"], "--draft-listen", sockets["draft"], "--target-listen",
            sockets["target"], "--metrics-listen", "", "--draft-metrics-listen", "", "--target-metrics-listen", "",
            "--http-listen", "") as u:
        assert {service: u.address(service) for service in SERVICES} == sockets
        assert not any(word in line for line in u.lines for word in ("http", "metrics", "OpenAI", "outrider top"))
        assert u.generate().returncode == 0


def test_up_uses_no_proxy_that_is_for_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with up() as u:
        done = u.generate("--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["speculation"]["drafted"] > 0


@pytest.mark.parametrize("flag", FREE)
def test_a_port_in_use_is_named_by_its_flag(flag: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = with_defaults(PAIR | FREE, [flag, address])
        assert refusal("outrider", "up", *flags).startswith(f"error: {flag}: cannot listen on {address}: ")


def test_one_port_for_two_is_refused_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    line = refusal("outrider", "up", *with_defaults(PAIR | FREE, ["--listen", address, "--draft-listen", address]))
    assert line.startswith(f"error: --draft-listen: cannot listen on {address}: ")


@pytest.mark.parametrize("flags, culprit", [
    (["--no-such-flag"], "--no-such-flag"),
    (["--listen", "7070"], "--listen"),
    (["--target-listen", ""], "--target-listen"),
    (["--http-listen", "unix:a.sock"], "--http-listen"),
    (["--draft-listen", "unix:/no/such/a.sock"], "--draft-listen"),
    (["--target-metrics-listen", "no-such-host.invalid:1"], "--target-metrics-listen"),
    (["--threads", "many"], "--threads"),
    (["--target-model", "/nowhere"], "/nowhere"),
    (["--dtype", "float17"], "float17"),
    (["--served-model-name", ""], "--served-model-name"),
])
def test_up_with_a_bad_flag_says_which(flags: list[str], culprit: str) -> None:
    assert culprit in refusal("outrider", "up", *with_defaults(PAIR | FREE, flags))


# --- services that end ----------------------------------------------------------------------------------------


def killed(u: Up, service: str) -> int:
    """Kills a service; returns the process id that it had."""
    pid = u.pids()[service]
    os.kill(pid, signal.SIGKILL)
    return pid


@pytest.mark.parametrize("service", SERVICES)
def test_what_dies_right_after_it_has_served_is_started_again(service: str) -> None:
    with up() as u:
        address = u.address(service)
        old = killed(u, service)
        u.wait_for_line(rf"the {service} service ended with signal 9 \(Killed\); starting it again in \S+$")
        new = eventually(lambda: u.pids().get(service), "it runs again")
        assert new != old and u.popen.poll() is None
        # It has the port that was picked first, so that the others find it.
        eventually(lambda: u.generate().returncode == 0, "it answers again")
        done = u.generate("--json")
        assert done.returncode == 0 and u.address(service) == address
        eventually(lambda: json.loads(u.generate("--json").stdout)["speculation"]["drafted"] > 0, "the draft drafts")


def test_what_has_served_is_started_again_while_the_others_still_load() -> None:
    # The path of a test's own folder may be too long for a socket.
    with tempfile.TemporaryDirectory() as folder, up(serving=False, TMPDIR=folder) as u:
        draft = eventually(lambda: u.pids().get("draft"), "the draft runs")
        os.kill(draft, signal.SIGSTOP)
        eventually(lambda: any('"event":"serving"' in log.read_text() for log in Path(folder).glob("*/target.log")),
                   "the target serves")
        killed(u, "target")
        u.wait_for_line(r"the target service ended with signal 9 \(Killed\); starting it again in \S+$")
        os.kill(draft, signal.SIGCONT)
        u.wait_serving()
        assert u.generate().returncode == 0


def test_what_has_served_is_tried_again_when_it_cannot_start_for_now(tmp_path: Path) -> None:
    model = shutil.copytree(DRAFT_MODEL, tmp_path / "draft", copy_function=shutil.copyfile)
    with up("--draft-model", str(model)) as u:
        (model / "config.json").rename(model / "gone")
        killed(u, "draft")
        u.wait_for_line(r"the draft service ended with exit status 1: .*config.json.*; starting it again in \S+$")
        assert u.generate().returncode == 0  # without a draft
        (model / "gone").rename(model / "config.json")
        eventually(lambda: json.loads(u.generate("--json").stdout)["speculation"]["drafted"] > 0, "the draft drafts")


def test_what_is_waited_for_is_said_within_ten_seconds(tmp_path: Path) -> None:
    # The configuration of the heads is a pipe, on which the target waits.
    config, whole = tmp_path / "config.json", TARGET_MODEL.parent / "tiny-heads" / "layer_skip" / "config.json"
    os.mkfifo(config)
    with up("--heads", str(tmp_path), serving=False) as u:
        u.wait_for_line(r"outrider: waiting for (9|10) s: the target .+")
        with config.open("w") as pipe:
            os.replace(shutil.copyfile(whole, tmp_path / "whole"), config)  # for later readers
            pipe.write(whole.read_text())
        u.wait_serving()


def test_what_cannot_even_start_stops_everything_and_says_why(tmp_path: Path) -> None:
    model = shutil.copytree(DRAFT_MODEL, tmp_path / "draft", copy_function=shutil.copyfile)
    (model / "model.safetensors").write_bytes(b"")
    line = refusal("outrider", "up", *with_defaults(PAIR | FREE, ["--draft-model", str(model)]))
    assert line.startswith("error: the draft service ended with exit status 1: ") and "model.safetensors" in line


# --- without a draft model ------------------------------------------------------------------------------------

NOTE = f"note: no --draft-model for {TARGET_MODEL}: drafting with n-grams\n"
NO_NAME = "(no such file or folder, and not ORG/NAME[@REVISION][:FILE.gguf])"
REPETITIVE = "To be, or not to be, to be, or not to be, to be,"


def local(*flags: str, models: dict[str, str] = TARGET) -> subprocess.CompletedProcess[str]:
    """`outrider generate` with services of its own."""
    return outrider("generate", *with_defaults(models, flags), "--temperature", "0", "--max-tokens", "40", "--json",
                    REPETITIVE)


@pytest.mark.parametrize("flags", [[], ["--draft-model", "none"]])
def test_up_with_a_target_alone_drafts_with_ngrams_and_speaks_of_no_draft(flags: list[str]) -> None:
    with up(*flags, models=TARGET) as u:
        assert u.pids().keys() == {"coordinator", "target"}
        assert u.lines[2] == "drafter      n-grams (no --draft-model)"
        assert u.lines[-1] == "Ctrl-C stops both."
        said = [outrider("describe", "--address", u.address("coordinator")).stdout,
                outrider("top", "--once", "--interval", "0.1", "--coordinator-metrics", u.metrics_address("coordinator"),
                         "--target-metrics", u.metrics_address("target")).stdout]
        assert not re.search(r"\bdraft\b", "\n".join(said + u.lines).replace("--draft-model", "")), said
        described = json.loads(outrider("describe", "--address", u.address("coordinator"), "--json").stdout)
        assert (described["defaults"]["drafter"], described["degraded"]) == ("ngram", False)


def test_up_with_heads_and_no_draft_drafts_with_both() -> None:
    with up("--heads", str(TARGET_MODEL.parent / "tiny-heads" / "eagle"), models=TARGET) as u:
        assert u.lines[2] == "drafter      n-grams and heads (no --draft-model)"
        described = json.loads(outrider("describe", "--address", u.address("coordinator"), "--json").stdout)
        assert described["defaults"]["drafter"] == "auto"
        text = "It was a dark evening in November, and"  # no n-gram occurs twice
        answer = outrider("generate", "--address", u.address("coordinator"), "--max-tokens", "4", "--temperature", "0", "--json", text)
        assert json.loads(answer.stdout)["speculation"]["drafted"] > 0


def test_generate_with_a_target_alone_drafts_with_ngrams_and_says_so() -> None:
    plain = local("--drafter", "none", models=PAIR)
    alone = local()
    assert (alone.returncode, alone.stderr) == (0, NOTE)
    assert json.loads(alone.stdout)["speculation"]["drafted"] > 0
    assert json.loads(alone.stdout)["tokens"] == json.loads(plain.stdout)["tokens"]
    asked = local("--draft-model", "none")
    assert (asked.returncode, asked.stderr) == (0, "")
    assert json.loads(asked.stdout)["tokens"] == json.loads(plain.stdout)["tokens"]


def test_a_drafter_that_is_named_comes_before_that() -> None:
    done = local("--drafter", "none")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["speculation"]["drafted"] == 0


@pytest.mark.parametrize("flags, error", [
    (["--drafter", "model"], "error: --drafter model needs a draft model: name one with --draft-model\n"),
    *(([flag, value], f"error: {flag} is for a draft model, and there is none: name one with --draft-model\n")
      for flag, value in (("--draft-dtype", "int8"), ("--draft-device", "cuda:0"), ("--frequent-tokens", "600"),
                          ("--parallel-draft", "4"))),
    (["--target-model", "/nowhere"], f"error: no model at /nowhere {NO_NAME}\n"),
    (["--draft-model", "/nowhere"], f"error: no model at /nowhere {NO_NAME}\n"),
])
def test_what_needs_a_draft_model_says_so_before_anything_is_started(flags: list[str], error: str) -> None:
    done = local(*flags)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", error)


def test_models_that_do_not_go_together_are_refused_in_words(tmp_path: Path) -> None:
    models = PAIR | {"--draft-model": str(with_other_tokens(DRAFT_MODEL, tmp_path))}
    for line in (local(models=models).stderr, refusal("outrider", "up", *with_defaults(models | FREE, []))):
        assert re.fullmatch(rf"error: the models do not go together: .*{DRAFT_MODEL.name}.* tokenizer.*tokens.*\n?", line)


# --- the model's name -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [["demo"], ["demo", "org/demo-1"]])
def test_up_serves_the_model_under_the_names_that_it_is_given(names: list[str]) -> None:
    with up(*[part for name in names for part in ("--served-model-name", name)]) as u:
        client = openai.OpenAI(base_url=u.wait_for_line(r"OpenAI's API: (\S+)$")[1], api_key="none", max_retries=0,
                               timeout=PATIENCE)
        assert [model.id for model in client.models.list()] == names
        for name in names:
            talk = [{"role": "user", "content": "Who was here?"}]
            assert client.chat.completions.create(model=name, messages=talk, max_tokens=4).model == "demo"
            assert client.models.retrieve(name).id == name
        with pytest.raises(openai.NotFoundError) as error:
            client.completions.create(model=TARGET_MODEL.name, prompt="Once", max_tokens=4)
        assert error.value.code == "model_not_found"
