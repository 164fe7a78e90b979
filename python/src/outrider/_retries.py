"""When a call is retried."""

from __future__ import annotations

import logging
import math
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

if TYPE_CHECKING:
    from outrider._errors import OutriderError

_log = logging.getLogger("outrider")

# gRPC counts nanoseconds in 64 bits: a deadline further away would already have passed.
_NO_LIMIT = 100 * 365 * 86400.0


@dataclass(frozen=True)
class Retries:
    """How a call is retried before its error is raised.

    A call is retried if it ended with UNAVAILABLE, or with RESOURCE_EXHAUSTED and a retry delay. The
    waits double from `initial` to `maximum` seconds, each shortened at random by up to half, so that
    clients don't all come back at once. A delay that the server named is waited in full.

    Attributes:
        budget: Seconds after a failure within which the call must make progress; the error is raised as soon as the
            next attempt would begin later. Arriving tokens restart the budget. 0: no retries.
        initial: Seconds before the first retry.
        maximum: The longest wait in seconds.
    """

    budget: float = 10.0
    initial: float = 0.1
    maximum: float = 1.0

    def __post_init__(self) -> None:
        if not (self.budget >= 0 and 0 < self.initial <= self.maximum):
            raise ValueError("Retries: budget >= 0 and 0 < initial <= maximum are needed")


class Attempts:
    """The attempts of one call, within a budget and a deadline."""

    def __init__(self, retries: Retries, timeout: float | None) -> None:
        """Raises ValueError for a timeout that is not a number."""
        if timeout is not None and math.isnan(timeout):
            raise ValueError("timeout: seconds are needed, or None for no limit")
        self._retries = retries
        self._deadline = math.inf if timeout is None or timeout > _NO_LIMIT else time.monotonic() + timeout
        self._failing_since: float | None = None
        self._failed = 0

    def remaining(self) -> float | None:
        """Seconds until the deadline, if there is one; negative once it has passed."""
        return None if self._deadline == math.inf else self._deadline - time.monotonic()

    def got_on(self) -> None:
        """Forgets earlier failures."""
        self._failing_since = None
        self._failed = 0

    def wait_after(self, error: OutriderError) -> float:
        """Seconds to wait before the next attempt. Raises the error if there is no next attempt."""
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        wait = min(self._retries.maximum, math.ldexp(self._retries.initial, min(self._failed, 60)))
        wait *= 1 - random.random() / 2
        if error.code == grpc.StatusCode.RESOURCE_EXHAUSTED and error.retry_after is not None:
            wait += error.retry_after
        elif error.code != grpc.StatusCode.UNAVAILABLE:
            raise error
        if now + wait > self._failing_since + self._retries.budget or now + wait >= self._deadline:
            raise error
        self._failed += 1
        _log.info("%s; attempt %d follows in %.2f s", error, self._failed + 1, wait)
        return wait
