"""The init container fetches weights from a hub, here a fake one on loopback."""

import http.server
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from manifests import ROOT

SCRIPT = ROOT / "deploy" / "docker" / "fetch_weights"
TOKEN = "hub-token"
OF_THE_COORDINATOR = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json",
                      "added_tokens.json", "generation_config.json"]
if shutil.which("curl") is None:
    pytest.skip("curl is not installed", allow_module_level=True)


class Hub:
    """A fake hub: repositories by name, their files by name; those in `private` require the token."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.asked: list[str] = []
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.asked.append(self.path)
                owner, name, _, _, file = self.path.lstrip("/").split("/", 4)
                repository = f"{owner}/{name}"
                body = hub.files.get(repository, {}).get(file)
                if repository in hub.private and self.headers["Authorization"] != f"Bearer {TOKEN}":
                    body, code = b"denied", 401
                else:
                    body, code = (b"no such file", 404) if body is None else (body, 200)
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    hub.files["o/whole"] = {"config.json": b"{}", "model.safetensors": bytes(100_000),
                            **dict.fromkeys(OF_THE_COORDINATOR, b"{}")}
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors",
                            "c": "model-00001-of-00002.safetensors"}}
    hub.files["o/sharded"] = {"config.json": b"{}", "tokenizer.json": b"[]", "generation_config.json": b"{}",
                              "model.safetensors.index.json": json.dumps(index).encode(),
                              "model-00001-of-00002.safetensors": b"one", "model-00002-of-00002.safetensors": b"two"}
    yield hub
    hub.server.shutdown()


def fetch(hub: Hub, repository: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, "--endpoint", hub.endpoint, *options, repository, folder], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("repository", ["o/whole", "o/sharded"])
def test_the_folder_has_what_the_hub_has(hub: Hub, repository: str, tmp_path: Path) -> None:
    assert fetch(hub, repository, tmp_path / "model").returncode == 0
    assert files(tmp_path / "model") == hub.files[repository]


def test_what_is_there_is_not_fetched_again(hub: Hub, tmp_path: Path) -> None:
    fetch(hub, "o/whole", tmp_path / "model")
    hub.asked.clear()
    assert fetch(hub, "o/whole", tmp_path / "model").returncode == 0
    assert hub.asked == []


def test_a_tokenizer_comes_without_weights(hub: Hub, tmp_path: Path) -> None:
    assert fetch(hub, "o/whole", tmp_path / "model", "--tokenizer-only").returncode == 0
    assert files(tmp_path / "model").keys() == set(OF_THE_COORDINATOR)


def test_a_revision_can_be_named(hub: Hub, tmp_path: Path) -> None:
    fetch(hub, "o/whole", tmp_path / "model", "--revision", "0123abc")
    assert hub.asked and all(path.startswith("/o/whole/resolve/0123abc/") for path in hub.asked)


def test_an_incomplete_model_leaves_no_folder_and_goes_on_later(hub: Hub, tmp_path: Path) -> None:
    shard = hub.files["o/sharded"].pop("model-00002-of-00002.safetensors")
    failed = fetch(hub, "o/sharded", tmp_path / "model")
    assert failed.returncode == 1 and "has no model-00002-of-00002.safetensors" in failed.stderr
    assert not (tmp_path / "model").exists()
    hub.files["o/sharded"]["model-00002-of-00002.safetensors"] = shard
    hub.asked.clear()
    assert fetch(hub, "o/sharded", tmp_path / "model").returncode == 0
    assert files(tmp_path / "model") == hub.files["o/sharded"]
    assert "/o/sharded/resolve/main/model-00001-of-00002.safetensors" not in hub.asked


def test_a_private_model_needs_the_token(hub: Hub, tmp_path: Path) -> None:
    hub.private.add("o/whole")
    (tmp_path / "token").write_text(TOKEN + "\n")
    denied = fetch(hub, "o/whole", tmp_path / "model", "--token-file", str(tmp_path / "no-such-file"))
    assert denied.returncode == 1 and "401" in denied.stderr and len(denied.stderr.splitlines()) == 1
    assert fetch(hub, "o/whole", tmp_path / "model", "--token-file", str(tmp_path / "token")).returncode == 0
    assert files(tmp_path / "model") == hub.files["o/whole"]


def test_a_hub_that_is_not_there_is_named_in_one_line(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / ".curlrc").write_text("retry-max-time = 1\n")  # instead of half a minute
    failed = subprocess.run([SCRIPT, "--endpoint", "http://name.invalid", "o/whole", tmp_path / "model"], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"CURL_HOME": str(tmp_path)})
    assert failed.returncode == 1 and "cannot fetch tokenizer.json of o/whole" in failed.stderr
