"""The SDK's two clients behind one interface, so that a test with the fixture `of` runs with each."""

import asyncio

import outrider
import pytest
from fake_coordinator import PATIENCE
from outrider import AsyncClient, Chunk, Client, Completion, Retries

QUICK = Retries(budget=PATIENCE, initial=0.001, maximum=0.002)


class Blocking:
    def __init__(self, address: str, retries: Retries = QUICK, **arguments: object) -> None:
        self.new = lambda: Client(address, retries=retries, **arguments)

    def generate(self, prompt: str | list[int] = "x", **options: object) -> Completion:
        with self.new() as client:
            return client.generate(prompt, **options)

    def samples(self, n: int, **options: object) -> list[Completion]:
        with self.new() as client:
            return client.generate_samples("x", n, **options)

    def stream(self, limit: int = 1000, **options: object) -> list[Chunk]:
        chunks = []
        with self.new() as client, client.stream("x", **options) as stream:
            while len(chunks) < limit and (chunk := next(stream, None)):
                chunks.append(chunk)
        return chunks

    def describe(self) -> outrider.Description:
        with self.new() as client:
            return client.describe()


class Asyncio:
    def __init__(self, address: str, retries: Retries = QUICK, **arguments: object) -> None:
        self.new = lambda: AsyncClient(address, retries=retries, **arguments)

    def generate(self, prompt: str | list[int] = "x", **options: object) -> Completion:
        async def run() -> Completion:
            async with self.new() as client:
                return await client.generate(prompt, **options)
        return asyncio.run(run())

    def samples(self, n: int, **options: object) -> list[Completion]:
        async def run() -> list[Completion]:
            async with self.new() as client:
                return await client.generate_samples("x", n, **options)
        return asyncio.run(run())

    def stream(self, limit: int = 1000, **options: object) -> list[Chunk]:
        async def run() -> list[Chunk]:
            chunks = []
            async with self.new() as client, client.stream("x", **options) as stream:
                while len(chunks) < limit and (chunk := await anext(stream, None)):
                    chunks.append(chunk)
            return chunks
        return asyncio.run(run())

    def describe(self) -> outrider.Description:
        async def run() -> outrider.Description:
            async with self.new() as client:
                return await client.describe()
        return asyncio.run(run())


@pytest.fixture(params=[Blocking, Asyncio])
def of(request: pytest.FixtureRequest) -> type[Blocking] | type[Asyncio]:
    """Returns a function that makes a client."""
    return request.param
