"""The progress of a Generate call, and how it is resumed when interrupted: no channel, no waiting, no threads."""

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
    """One generation, over as many calls as needed.

    Each call sends `request` and has `remaining` seconds. Pass its messages to `receive`, its error to
    `wait_after`, and its regular end to `end`; the latter two raise if the generation has failed.
    """

    def __init__(self, request: inference_pb2.GenerateRequest, retries: Retries, timeout: float | None) -> None:
        # Its resume_from grows with the tokens received.
        self.request = request
        self._draw_seed()
        self._attempts = Attempts(retries, timeout)
        self._samples = max(request.n, 1)
        self._received = [len(request.resume_from)] * self._samples
        self._unfinished = set(range(self._samples))
        self._begun = False
        # Prompt positions received so far, and how many of them the present call has yet to repeat.
        self._scored = self._repeated = 0

    @property
    def complete(self) -> bool:
        """Every sample has ended; the call's further fate does not matter."""
        return not self._unfinished

    def remaining(self) -> float | None:
        """Seconds until the deadline, if there is one; negative once it has passed."""
        return self._attempts.remaining()

    def receive(self, response: inference_pb2.GenerateResponse) -> Chunk:
        """Returns the chunk to hand on. DataLoss if it is not the expected next one."""
        sample = response.sample
        if sample not in self._unfinished or response.position != self._received[sample]:
            raise DataLoss(f"sample {sample}: no chunk at {response.position} was expected", reason="ANSWER_GAP")
        self._begun = True
        self._received[sample] += len(response.tokens)
        known = min(self._repeated, len(response.prompt_logprobs))
        del response.prompt_logprobs[:known]
        self._repeated -= known
        self._scored += len(response.prompt_logprobs)
        if response.HasField("prompt"):
            self.request.echo = False
        if self._samples == 1 and response.tokens:
            self.request.resume_from.extend(token.id for token in response.tokens)
            # Prompt log-probabilities come no later than the first token.
            self.request.logprobs.ClearField("prompt")
        if response.HasField("finish"):
            self._unfinished.remove(sample)
        if response.tokens:
            self._attempts.got_on()
        return to_chunk(response)

    def end(self) -> None:
        """Ends a call that ended without error. DataLoss if the answer is incomplete."""
        if not self.complete:
            raise DataLoss("the answer ended without its last chunk", reason="ANSWER_INCOMPLETE")

    def wait_after(self, error: OutriderError) -> float:
        """Seconds to wait before the next call. Raises the error if there is no next call."""
        if self._samples > 1 and self._begun:
            raise error  # several samples cannot be resumed
        self._repeated = self._scored
        return self._attempts.wait_after(error)

    def _draw_seed(self) -> None:
        """Draws a seed under the coupled rule, where the same seed continues the same answer.

        Greedy decoding draws nothing. Under the other rules a continuation with another seed is as exact as one with
        the same, and a seed would keep the coordinator from choosing K by its measurements.
        """
        if self.request.speculation.rule == sequence_pb2.RULE_COUPLED and not self.request.HasField("seed"):
            self.request.seed = secrets.randbits(64)
