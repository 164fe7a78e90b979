"""A man in the middle between the coordinator and a draft or target, which decides about each item and each result.

  proxy = Proxy("target")
  with cluster(target_through=proxy) as c:
      proxy.on_item = lambda sequence: MARK not in sequence.tokens
      proxy.on_result = lambda result: [result, result]  # says everything twice
"""

import contextlib
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc

from harness import draft_pb2_grpc, sequence_pb2, target_pb2_grpc

# The channel reconnects soon after the server is back.
OPTIONS = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.min_reconnect_backoff_ms", 100),
           ("grpc.max_reconnect_backoff_ms", 200), ("grpc.use_local_subchannel_pool", 1)]


class Proxy(target_pb2_grpc.TargetServicer, draft_pb2_grpc.DraftServicer):
    """Passes on the items that on_item approves, and swallows the others. Replaces each result by the results of on_result."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.on_item: Callable[[sequence_pb2.SequenceUpdate], bool] = lambda sequence: True
        self.on_result: Callable[[Any], list[Any]] = lambda result: [result]

    @contextlib.contextmanager
    def __call__(self, address: str) -> Iterator[str]:
        server = grpc.server(futures.ThreadPoolExecutor(16))
        with grpc.insecure_channel(address, options=OPTIONS) as channel:
            if self._kind == "target":
                self._method = target_pb2_grpc.TargetStub(channel).Verify
                target_pb2_grpc.add_TargetServicer_to_server(self, server)
            else:
                self._method = draft_pb2_grpc.DraftStub(channel).Propose
                draft_pb2_grpc.add_DraftServicer_to_server(self, server)
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            yield f"127.0.0.1:{port}"
            server.stop(0).wait()

    def Verify(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        return self._pass_on(requests, context)

    def Propose(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        return self._pass_on(requests, context)

    def _pass_on(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        answers = self._method(self._approved(requests))
        context.add_callback(answers.cancel)
        with contextlib.suppress(grpc.RpcError):
            for answer in answers:
                results = [sent for result in answer.results for sent in self.on_result(result)]
                del answer.results[:]
                answer.results.extend(results)
                yield answer

    def _approved(self, requests: Iterator[Any]) -> Iterator[Any]:
        with contextlib.suppress(grpc.RpcError):
            for request in requests:
                items = [item for item in request.items if self._approves(item)]
                if items:
                    yield type(request)(items=items)

    def _approves(self, item: Any) -> bool:
        kind = item.WhichOneof("kind")
        return kind not in ("verify", "propose") or self.on_item(getattr(item, kind).sequence)
