"""A TCP relay in front of a server, which can freeze, cut and slow connections as networks do."""

import contextlib
import queue
import random
import socket
import threading
import time
from collections.abc import Iterator

CHUNK = 1 << 16


class Relay:
    """Passes bytes both ways. To the server it looks like a client on the host `source`. Thread-safe."""

    def __init__(self, address: str, source: str = "127.0.0.1") -> None:
        host, port = address.rsplit(":", 1)
        self._upstream = (host, int(port))
        self._source = (source, 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._flowing = threading.Event()
        self._flowing.set()
        self._delay = (0.0, 0.0)
        self._random = random.Random(1)
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def slow(self, shortest: float, longest: float) -> None:
        """Delays bytes from now on by times in this range, in seconds; their order stays."""
        self._delay = (shortest, longest)

    def freeze(self) -> None:
        """Stops all bytes. Connections stay open, and new ones are accepted, as when packets are lost."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    def cut(self) -> None:
        """Ends all open connections."""
        for one in list(self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.thaw()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._flowing.wait()
        with client, contextlib.suppress(OSError), socket.create_connection(self._upstream, source_address=self._source) as server:
            both = {client, server}
            self._sockets |= both
            for one in both:
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ways = [threading.Thread(target=self._pass, args=way, daemon=True)
                    for way in ((client, server), (server, client))]
            for way in ways:
                way.start()
            for way in ways:
                way.join()
            self._sockets -= both

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        writer = threading.Thread(target=self._write, args=(waiting, sink), daemon=True)
        writer.start()
        data = b"?"
        while data:
            try:
                data = source.recv(CHUNK)
            except OSError:
                data = b""
            waiting.put((time.monotonic() + self._random.uniform(*self._delay), data))
        writer.join()

    def _write(self, waiting: "queue.SimpleQueue[tuple[float, bytes]]", sink: socket.socket) -> None:
        while True:
            due, data = waiting.get()
            self._flowing.wait()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                if not data:
                    sink.shutdown(socket.SHUT_RDWR)
                    return
                sink.sendall(data)
            except OSError:
                return


@contextlib.contextmanager
def relay(address: str, source: str = "127.0.0.1") -> Iterator[Relay]:
    result = Relay(address, source)
    try:
        yield result
    finally:
        result.close()


@contextlib.contextmanager
def through_relay(relays: list[Relay], address: str) -> Iterator[str]:
    """A proxy for harness.cluster: a relay, which is added to `relays`."""
    with relay(address) as between:
        relays.append(between)
        yield between.address
