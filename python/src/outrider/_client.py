"""The blocking client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import grpc

from outrider._answer import Chunk, join
from outrider._channel import OneProcess, endpoint, to_metadata
from outrider._description import to_description
from outrider._errors import CLIENT_CLOSED, Cancelled, from_rpc_error
from outrider._methods import DESCRIBE, GENERATE
from outrider._progress import Progress
from outrider._request import build_request
from outrider._retries import Attempts, Retries
from outrider.v1 import inference_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self, Unpack

    from outrider._answer import Completion
    from outrider._channel import Tls, Token
    from outrider._description import Description
    from outrider._request import Options, Prompt


class Client:
    """A connection to a coordinator. Calls may overlap, from any number of threads.

        with Client("127.0.0.1:7070") as client:
            print(client.generate("The sea was calm", max_tokens=40).text)

    The client connects at the first call, and again whenever the connection was lost. `Options` lists the options
    of a generation. A forked process needs its own client: there, this one raises
    RuntimeError.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout: float | None = None,
        tls: Tls | None = None,
        token: Token | None = None,
        retries: Retries | None = None,
    ) -> None:
        """Does not connect yet.

        Args:
            address: "HOST:PORT" or "unix:PATH".
            timeout: The most seconds that a generation may take in all, retries included. None: no limit.
            tls: How to encrypt. None: plaintext.
            token: Sent with each call as "authorization: Bearer ..."; only with `tls`.
            retries: When to retry a call. None: `Retries()`.

        Raises:
            ValueError: The address is invalid, or the arguments contradict each other.
            OSError: A file of `tls` cannot be read.
        """
        at = endpoint(address, tls, token)
        self._process = OneProcess()
        if at.credentials is None:
            self._channel = grpc.insecure_channel(at.address, options=at.options)
        else:
            self._channel = grpc.secure_channel(at.address, at.credentials, options=at.options)
        self._generate = self._channel.unary_stream(
            GENERATE,
            request_serializer=inference_pb2.GenerateRequest.SerializeToString,
            response_deserializer=inference_pb2.GenerateResponse.FromString,
        )
        self._describe = self._channel.unary_unary(
            DESCRIBE,
            request_serializer=inference_pb2.DescribeRequest.SerializeToString,
            response_deserializer=inference_pb2.DescribeResponse.FromString,
        )
        self._timeout = timeout
        self._retries = retries or Retries()
        self._closed = threading.Event()

    def generate(
        self,
        prompt: Prompt,
        *,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
        **options: Unpack[Options],
    ) -> Completion:
        """The continuation of a prompt, which is text, token ids or a conversation.

        Args:
            prompt: The text, token ids or conversation to continue.
            timeout: Replaces the client's timeout.
            metadata: Sent with the call, such as a traceparent.
            **options: See `Options`.

        Raises:
            OutriderError: The call failed.
        """
        with self._stream(prompt, 1, timeout, metadata, options) as chunks:
            return join(chunks)[0]

    def generate_samples(
        self,
        prompt: Prompt,
        n: int,
        *,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
        **options: Unpack[Options],
    ) -> list[Completion]:
        """`n` continuations of a prompt, which is computed once. Arguments and errors are those of `generate`.

        A call for more than one continuation is not resumed once it has begun: it raises Unavailable.
        """
        with self._stream(prompt, n, timeout, metadata, options) as chunks:
            return join(chunks)

    def stream(
        self,
        prompt: Prompt,
        *,
        n: int = 1,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
        **options: Unpack[Options],
    ) -> Stream:
        """The chunks of a continuation, or of `n`, as they arrive. Arguments and errors are those of `generate`.

        Example:
            for chunk in client.stream("The sea was calm", max_tokens=40):
                print(chunk.text, end="", flush=True)
        """
        return self._stream(prompt, n, timeout, metadata, options)

    def describe(self, *, timeout: float | None = 5.0) -> Description:
        """Describes what is served, by which servers, and their state."""
        attempts = Attempts(self._retries, timeout)
        while True:
            self._check_open()
            try:
                return to_description(self._describe(inference_pb2.DescribeRequest(), timeout=attempts.remaining()))
            except grpc.RpcError as error:
                wait = attempts.wait_after(from_rpc_error(error))
            self._closed.wait(wait)

    def close(self) -> None:
        """Ends running calls, which raise `Cancelled`, and closes the connection."""
        self._closed.set()
        if self._process:
            self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _stream(
        self, prompt: Prompt, n: int, timeout: float | None, metadata: Mapping[str, str] | None, options: Options
    ) -> Stream:
        limit = self._timeout if timeout is None else timeout
        return Stream(self, Progress(build_request(prompt, n, options), self._retries, limit), metadata)

    def _check_open(self) -> None:
        self._process.check()
        if self._closed.is_set():
            raise Cancelled("the client is closed", reason=CLIENT_CLOSED)


class _Call(Protocol):
    """The methods of gRPC's call that are used here."""

    def __next__(self) -> inference_pb2.GenerateResponse: ...
    def cancel(self) -> bool: ...


class Stream(Iterator[Chunk]):
    """The chunks of an answer, as they arrive. Only `close` may be called from another thread at the same time.

    To stop early, close it, leave its with-block, or break out of the loop over it while nothing else
    refers to it. The service then ends the generation and frees what it held.
    """

    def __init__(self, client: Client, progress: Progress, metadata: Mapping[str, str] | None) -> None:
        """Made by `Client.stream`."""
        self._client = client
        self._progress = progress
        self._call: _Call | None = None
        self._over = False
        self._metadata = to_metadata(metadata)

    def __next__(self) -> Chunk:
        while not self._over:
            try:
                self._client._process.check()
                if self._call is None:
                    self._call = self._start()
                return self._progress.receive(next(self._call))
            except StopIteration:
                self._over = True
                self._progress.end()
            except grpc.RpcError as error:
                self._call = None
                self._over = self._over or self._progress.complete
                if not self._over:
                    self._pause(error)
            except BaseException:
                self.close()
                raise
        raise StopIteration

    def close(self) -> None:
        """Ends the call if it is not over. Further chunks are not read."""
        self._over = True
        if self._call is not None and self._client._process:
            self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _start(self) -> _Call:
        self._client._check_open()
        try:
            return self._client._generate(
                self._progress.request, timeout=self._progress.remaining(), metadata=self._metadata
            )
        except ValueError:  # closed in the meantime
            self._client._check_open()
            raise

    def _pause(self, error: grpc.RpcError) -> None:
        """Waits until it is time for the next call."""
        try:
            self._client._check_open()
            self._client._closed.wait(self._progress.wait_after(from_rpc_error(error)))
        except BaseException:
            self._over = True
            raise
