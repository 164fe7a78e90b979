"""A draft that speculates itself with what it looks up in the text: the same proposals, in fewer steps."""

from harness import Answer, Cluster, cluster

PROMPT = "The sea was calm that morning. The sea was calm that evening. The sea was calm that"
CALLS = [{"temperature": 0}, {"temperature": 0.5, "seed": 3}, {"rule": "coupled", "temperature": 0.5, "seed": 5},
         {"rule": "block", "temperature": 0.5, "seed": 7}, {"temperature": 0, "repetition_penalty": 1.2}, {"temperature": 0, "tree": "2x2x1"}]


def answers(c: Cluster) -> list[Answer]:
    return [c.generate(PROMPT, max_tokens=100, ignore_eos=True, trace=True, schedule="lockstep", **{"k": 6} | options) for options in CALLS]


def steps(c: Cluster) -> float:
    assert c.draft is not None
    return c.draft.value("outrider_draft_step_duration_seconds_count")


def test_guesses_change_no_proposal_and_save_steps() -> None:
    patient = ["--draft-budget", "60"]  # a late proposal would be cut
    with cluster(coordinator=patient) as plain, cluster(draft=["--lookup-tokens", "4"], coordinator=patient) as guessing:
        for options, wanted, got in zip(CALLS, answers(plain), answers(guessing), strict=True):
            assert got.tokens == wanted.tokens, options
            assert [round.drafted for round in got.rounds] == [round.drafted for round in wanted.rounds], options
        assert steps(guessing) < steps(plain)
