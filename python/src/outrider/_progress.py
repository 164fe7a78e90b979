"""How far a call of Generate has come, and how it goes on when it breaks off: no channel, no waiting, no threads."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from outrider._answer import to_chunk
from outrider._errors import DataLoss
from outrider._retries import Attempts
from outrider.v1 import inference_pb2, sequence_pb2

if TYPE_CHECKING:
    from outrider._answer import Chunk
    from outrider._errors import OutriderError
    from outrider._retries import Retries


class Progress:
    """One generation, over as many calls as it takes.

    Each call sends `request` and has `remaining` seconds. Its messages go to `receive`, its error to
    `wait_after`, and its orderly end to `end`; the latter two raise when the generation has failed.
    """

    def __init__(self, request: inference_pb2.GenerateRequest, retries: Retries, timeout: float | None) -> None:
        # With the tokens received so far as resume_from.
        self.request = request
        self._draw_seed()
        self._attempts = Attempts(retries, timeout)
        self._samples = max(request.n, 1)
        self._received = [len(request.resume_from)] * self._samples
        self._unfinished = set(range(self._samples))
        self._begun = False
        # Positions of the prompt that were received, and how many of them the present call has yet to repeat.
        self._scored = self._repeated = 0

    @property
    def complete(self) -> bool:
        """Every sample has come to its end; whatever happens to the call now is of no interest."""
        return not self._unfinished

    def remaining(self) -> float | None:
        """Seconds until the deadline, if there is one; negative once it has passed."""
        return self._attempts.remaining()

    def receive(self, response: inference_pb2.GenerateResponse) -> Chunk:
        """The chunk to hand on. DataLoss if it is not the one that must come next."""
        sample = response.sample
        if sample not in self._unfinished or response.position != self._received[sample]:
            raise DataLoss(f"sample {sample}: no chunk at {response.position} was expected", reason="ANSWER_GAP")
        self._begun = True
        self._received[sample] += len(response.tokens)
        known = min(self._repeated, len(response.prompt_logprobs))
        del response.prompt_logprobs[:known]
        self._repeated -= known
        self._scored += len(response.prompt_logprobs)
        if self._samples == 1 and response.tokens:
            self.request.resume_from.extend(token.id for token in response.tokens)
            # They all came before the first token or with it.
            self.request.logprobs.ClearField("prompt")
        if response.HasField("finish"):
            self._unfinished.remove(sample)
        if response.tokens:
            self._attempts.got_on()
        return to_chunk(response)

    def end(self) -> None:
        """The call ended in order. DataLoss if the answer did not."""
        if not self.complete:
            raise DataLoss("the answer ended without its last chunk", reason="ANSWER_INCOMPLETE")

    def wait_after(self, error: OutriderError) -> float:
        """Seconds to wait before the next call. Raises the error if there is to be none."""
        if self._samples > 1 and self._begun:
            raise error  # several samples cannot be resumed
        self._repeated = self._scored
        return self._attempts.wait_after(error)

    def _draw_seed(self) -> None:
        """Under the coupled rule the same seed continues the same answer.

        Greedily there is nothing to draw, and under the other rules a continuation with another seed is as exact
        as one with the same; but a seed would keep the coordinator from choosing K by its measurements.
        """
        if self.request.speculation.rule == sequence_pb2.RULE_COUPLED and not self.request.HasField("seed"):
            self.request.seed = secrets.randbits(64)
