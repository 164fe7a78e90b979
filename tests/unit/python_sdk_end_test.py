"""Calls of the Python SDK that the client ends: timeouts, closing, cancelling. The service notices each of them."""

import asyncio
import math
import os
import subprocess
import sys
import threading

import outrider
import pytest
from fake_coordinator import PATIENCE, TEXT, FakeCoordinator, endless, failing
from grpc import StatusCode
from outrider import AsyncClient, Client, Retries
from python_sdk_clients import Blocking

UNAVAILABLE, EXHAUSTED = StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED


def test_a_timeout_covers_all_attempts_and_reaches_the_service(of: type[Blocking]) -> None:
    with FakeCoordinator(failing(UNAVAILABLE), endless) as server:
        with pytest.raises(outrider.DeadlineExceeded):
            of(server.address, timeout=2).generate()
        assert server.calls[1].ended.wait(PATIENCE)


def test_the_timeout_of_a_call_comes_before_that_of_its_client(of: type[Blocking]) -> None:
    with FakeCoordinator(endless) as server, pytest.raises(outrider.DeadlineExceeded):
        of(server.address, timeout=10 * PATIENCE).generate(timeout=0.1)


@pytest.mark.parametrize("timeout", [1e10, sys.maxsize, math.inf])
def test_a_timeout_beyond_what_grpc_counts_is_no_limit(of: type[Blocking], timeout: float) -> None:
    with FakeCoordinator() as server:
        assert of(server.address, timeout=timeout).generate().text == TEXT


def test_a_timeout_is_a_number(of: type[Blocking]) -> None:
    with pytest.raises(ValueError, match="timeout"):
        of("127.0.0.1:1", timeout=math.nan).generate()


# A process without a gRPC server, which would not survive the fork either.
FORKS = """
import os, signal, sys
from outrider import Client

with Client(sys.argv[1]) as client:
    stream = client.stream("x")
    next(stream)
    child = os.fork()
    if child == 0:
        signal.alarm(int(sys.argv[2]))  # instead of waiting for ever
        refused = 0
        for call in (lambda: next(stream), lambda: client.generate("x"), client.describe):
            try:
                call()
            except RuntimeError:
                refused += 1
        stream.close()
        client.close()
        os._exit(refused)
    refused = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    next(stream)  # goes on here
sys.exit(refused)
"""


FORKS_BESIDE_A_LOOP = """
import asyncio, os, signal, sys
from outrider import AsyncClient

async def run():
    async with AsyncClient(sys.argv[1]) as client:
        stream = client.stream("x")
        await anext(stream)
        child = os.fork()
        if child == 0:
            signal.alarm(int(sys.argv[2]))  # instead of waiting for ever
            refused = 0
            for call in (lambda: anext(stream), lambda: client.generate("x"), client.describe):
                try:
                    await call()
                except RuntimeError:
                    refused += 1
            await stream.aclose()
            await client.close()
            os._exit(refused)
        refused = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        await anext(stream)  # goes on here
        return refused

sys.exit(asyncio.run(run()))
"""


@pytest.mark.parametrize("program, variables", [(FORKS, {}), (FORKS_BESIDE_A_LOOP, {"GRPC_ENABLE_FORK_SUPPORT": "0"})],
                         ids=["Client", "AsyncClient"])
def test_a_forked_process_is_told_that_it_needs_a_client_of_its_own(program: str, variables: dict[str, str]) -> None:
    with FakeCoordinator(endless) as server:
        done = subprocess.run([sys.executable, "-c", program, server.address, str(int(PATIENCE))], env=os.environ | variables, check=False)
        assert done.returncode == 3


def test_leaving_the_with_block_cancels(of: type[Blocking]) -> None:
    with FakeCoordinator(endless) as server:
        assert [c.position for c in of(server.address).stream(limit=1)] == [0]
        assert server.calls[0].ended.wait(PATIENCE)


def test_breaking_out_of_the_loop_cancels() -> None:
    with FakeCoordinator(endless, endless) as server:
        with Client(server.address) as client:
            for _ in client.stream("x"):
                break
            assert server.calls[0].ended.wait(PATIENCE)

        async def run() -> None:
            async with AsyncClient(server.address) as client:
                async for _ in client.stream("x"):
                    break
                assert await asyncio.to_thread(server.calls[1].ended.wait, PATIENCE)
        asyncio.run(run())


def test_a_closed_stream_is_over() -> None:
    with FakeCoordinator(endless) as server, Client(server.address) as client:
        stream = client.stream("x")
        next(stream)
        stream.close()
        assert list(stream) == []


def test_closing_the_client_ends_its_calls() -> None:
    with FakeCoordinator(endless) as server:
        client = Client(server.address)
        stream = client.stream("x")
        next(stream), next(stream)
        threading.Timer(0.01, client.close).start()
        with pytest.raises(outrider.Cancelled) as error:
            next(stream)
        assert error.value.reason == "CLIENT_CLOSED"
        with pytest.raises(outrider.Cancelled):
            client.generate("x")


def test_closing_the_client_ends_its_waits() -> None:
    with FakeCoordinator(failing(EXHAUSTED, "QUEUE_FULL", retry_after=5 * PATIENCE)) as server:
        client = Client(server.address, retries=Retries(budget=10 * PATIENCE))
        threading.Timer(0.05, client.close).start()
        with pytest.raises(outrider.Cancelled):
            client.generate("x")


def test_closing_the_asyncio_client_ends_its_calls_and_cancelling_a_task_stays_that() -> None:
    async def run(server: FakeCoordinator) -> None:
        client = AsyncClient(server.address)
        begun = [asyncio.Event(), asyncio.Event()]

        async def read(event: asyncio.Event) -> None:
            async for _ in client.stream("x"):
                event.set()

        tasks = [asyncio.create_task(read(event)) for event in begun]
        for event in begun:
            await event.wait()
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        await client.close()
        with pytest.raises(outrider.Cancelled) as error:
            await tasks[1]
        assert error.value.reason == "CLIENT_CLOSED"
        assert await asyncio.to_thread(lambda: all(call.ended.wait(PATIENCE) for call in server.calls))

    with FakeCoordinator(endless, endless) as server:
        asyncio.run(run(server))


def test_closing_the_asyncio_client_ends_its_waits() -> None:
    async def run(server: FakeCoordinator) -> None:
        client = AsyncClient(server.address, retries=Retries(budget=10 * PATIENCE))
        asyncio.get_running_loop().call_later(0.05, lambda: asyncio.ensure_future(client.close()))
        with pytest.raises(outrider.Cancelled):
            await client.generate("x")

    with FakeCoordinator(failing(EXHAUSTED, "QUEUE_FULL", retry_after=5 * PATIENCE)) as server:
        asyncio.run(run(server))
