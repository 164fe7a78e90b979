"""The PromQL that the dashboards share.

Every series is filtered by the variables namespace, model_name, job and instance. Those of a draft's engine are not filtered by
model_name: they name the draft's model, not the one that is served. Every rate is over $__rate_interval. Every divisor is above
0, so a panel shows no data where nothing happened, never NaN or infinity.
"""

PREFIX = "outrider_"
# Series that coordinators report about their drafts.
OF_COORDINATOR = ("draft_up", "draft_errors_total")


def series(name: str, where: str = "") -> str:
    of_draft = name.startswith("draft_") and name not in OF_COORDINATOR
    variables = ["namespace", *([] if of_draft else ["model_name"]), "job", "instance"]
    matchers = [f'{variable}=~"${variable}"' for variable in variables] + ([where] if where else [])
    return f"{PREFIX}{name}{{{', '.join(matchers)}}}"


def total(name: str, by: str = "", where: str = "", function: str = "sum") -> str:
    """A gauge, over all instances or by labels."""
    return f"{function}{_by(by)} ({series(name, where)})"


def rate(name: str, by: str = "", where: str = "") -> str:
    """How much a counter grows per second."""
    return f"sum{_by(by)} (rate({series(name, where)}[$__rate_interval]))"


def growth(name: str, by: str = "") -> str:
    """How much a counter grew within the window."""
    return f"sum{_by(by)} (increase({series(name)}[$__rate_interval]))"


def ratio(top: str, bottom: str) -> str:
    return f"{top} / ({bottom} > 0)"


def mean(histogram: str, by: str = "", where: str = "") -> str:
    return ratio(rate(f"{histogram}_sum", by, where), rate(f"{histogram}_count", by, where))


def quantile(q: float, histogram: str, by: str = "", where: str = "") -> str:
    """Without observations histogram_quantile is NaN, which the comparison drops."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, {rate(f'{histogram}_bucket', labels, where)}) >= 0"


def _by(labels: str) -> str:
    return f" by ({labels})" if labels else ""
