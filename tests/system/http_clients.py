"""Clients of the coordinator's HTTP server, for tests of the OpenAI API."""

import contextlib
import http.client
import json
import shutil
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import openai

from harness import PATIENCE, ROOT, TARGET_MODEL, Cluster

MODEL = TARGET_MODEL.name

TALK = [{"role": "system", "content": "You tell stories."}, {"role": "user", "content": "Once upon a time"}]
# TALK as the template "alternating" renders it.
TALK_WRITTEN = "<|begin_of_text|>[INST] You tell stories.\n\nOnce upon a time [/INST]"


def base_url(c: Cluster) -> str:
    return f"http://{c.coordinator.http_address}/v1"


def connect(c: Cluster) -> openai.OpenAI:
    return openai.OpenAI(base_url=base_url(c), api_key="none", max_retries=0, timeout=PATIENCE)


def chat_folder(folder: Path) -> Path:
    """The model's tokenizer with the template "alternating" beside it."""
    goldens = json.loads((ROOT / "tests" / "data" / "chat" / "goldens.json").read_text())
    shutil.copy(TARGET_MODEL / "tokenizer.json", folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "bos_token": "<|begin_of_text|>", "eos_token": {"content": "<|end_of_text|>"},
        "chat_template": goldens["templates"]["alternating"]["source"]}))
    return folder


NO_ANSWER = 0  # the status of a connection that fails or is closed


def status_of(url: str, *, body: Any = None, headers: Mapping[str, str] | None = None, tls: ssl.SSLContext | None = None) -> int:
    """The status of a request over a new connection: a GET without a body, else a POST."""
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers or {}), timeout=PATIENCE, context=tls) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return NO_ANSWER


@contextlib.contextmanager
def post(c: Cluster, path: str, body: Any) -> Iterator[http.client.HTTPResponse]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    wanted = urllib.request.Request(f"http://{c.coordinator.http_address}{path}", data=data,
                                    headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(wanted, timeout=PATIENCE) as response:
        yield response


def send(c: Cluster, body: dict[str, Any]) -> socket.socket:
    """Sends a completion request over a socket and does not read the answer."""
    host, port = c.coordinator.http_address.rsplit(":", 1)
    connection = socket.socket()
    connection.settimeout(PATIENCE)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    data = json.dumps(body).encode()
    connection.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(data)}\r\n"
                       f"Connection: close\r\n\r\n".encode() + data)
    return connection


def ask_from(host: str, c: Cluster, prompt: str, *, token: str = "", **options: object) -> http.client.HTTPConnection:
    """Sends a completion request from `host`, which looks like another machine to the coordinator, with a token if there is one."""
    address, port = c.coordinator.http_address.rsplit(":", 1)
    connection = http.client.HTTPConnection(address, int(port), timeout=PATIENCE, source_address=(host, 0))
    body = {"prompt": prompt, "max_tokens": 3, "temperature": 0} | options
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    return connection


def answer_of(connection: http.client.HTTPConnection) -> tuple[int, dict[str, object]]:
    with contextlib.closing(connection):
        response = connection.getresponse()
        return response.status, json.load(response)


def complete_from(host: str, c: Cluster, prompt: str) -> str:
    status, body = answer_of(ask_from(host, c, prompt))
    assert status == 200, body
    return body["choices"][0]["text"]
