"""The prefix cache and the policy's choice of K: neither changes the output."""

from pathlib import Path

from harness import (PATIENCE, TARGET_MODEL, Cluster, cluster, inference_pb2_grpc, refusal, request, running, start_coordinator)
from http_clients import complete_from

LONG = {"max_tokens": 24, "ignore_eos": True}


def system_prompt(prompts: list[str]) -> str:
    return " ".join(prompts)[:900]


def test_a_prompt_that_was_seen_is_not_computed_again(prompts: list[str]) -> None:
    with cluster() as c:
        prompt = system_prompt(prompts)
        first, again = (c.generate(prompt, k=3, temperature=0, **LONG) for _ in range(2))
        assert first.finish.usage.cached_prompt_tokens == 0
        # All full blocks except that of the last token.
        length = again.finish.usage.prompt_tokens
        assert length - 32 <= again.finish.usage.cached_prompt_tokens < length
        assert again.tokens == first.tokens
        assert c.target.value("outrider_target_prefix_cache_hits_total") == again.finish.usage.cached_prompt_tokens
        assert c.draft.value("outrider_draft_prefix_cache_hits_total") > 0
        c.wait_idle()
        assert c.target.value("outrider_target_kv_blocks_cached") > 0


def test_a_client_does_not_find_what_another_sent_unless_they_share(prompts: list[str]) -> None:
    prompt = system_prompt(prompts)
    hits = "outrider_target_prefix_cache_hits_total"
    for flags, shared in (([], False), (["--share-prefix-cache"], True)):
        with cluster(draft=None, coordinator=flags) as c:
            for host in ("127.0.0.2", "127.0.0.2"):
                complete_from(host, c, prompt)
            own = c.target.value(hits)
            assert own > 0
            complete_from("127.0.0.3", c, prompt)
            assert (c.target.value(hits) > own) == shared


def test_coordinators_with_one_key_find_what_clients_sent_to_the_other(prompts: list[str], tmp_path: Path) -> None:
    keys = [tmp_path / name for name in ("one", "two")]
    for key in keys:
        key.write_text(f"the key that is called {key.name}, and is long enough\n")
    hits = "outrider_target_prefix_cache_hits_total"
    with cluster(draft=None, coordinator=["--cache-key-file", str(keys[0])]) as c:
        others = [start_coordinator(c.target.address, "", "--cache-key-file", str(key)) for key in keys]
        with running(*others):
            c.generate(system_prompt(prompts), max_tokens=1)
            found = []
            for other in others:
                before = c.target.value(hits)
                with other.connect() as channel:
                    list(inference_pb2_grpc.InferenceStub(channel).Generate(request(system_prompt(prompts), max_tokens=1),
                                                                            timeout=PATIENCE, wait_for_ready=True))
                found.append(c.target.value(hits) > before)
            assert found == [True, False]


def test_a_key_that_can_be_guessed_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    for text, said in ((None, "cannot be read"), ("short", "5 bytes")):
        if text is not None:
            key.write_text(text)
        line = refusal("outrider-coordinator", "--tokenizer", str(TARGET_MODEL), "--listen", "127.0.0.1:0", "--cache-key-file", str(key))
        assert f"--cache-key-file: {key}: {said}" in line


def test_hits_change_nothing_in_any_answer(prompts: list[str]) -> None:
    shared = system_prompt(prompts)
    calls = [(shared + prompt, {"k": i % 5, "rule": ["token", "coupled", "block"][i % 3], "seed": i,
                                "temperature": [0, 0.8, 1.2][i % 3 if i % 3 == 1 else 0], **LONG})
             for i, prompt in enumerate(prompts[:12])]
    patient = ["--draft-budget", "60"]
    with cluster(target=["--no-prefix-cache"], draft=["--no-prefix-cache"], coordinator=patient) as c:
        cold = [answer.tokens for answer in c.generate_all(calls)]
        assert c.target.value("outrider_target_prefix_cache_hits_total") == 0
    with cluster(coordinator=patient) as c:
        for _ in range(2):
            assert [answer.tokens for answer in c.generate_all(calls)] == cold
        assert c.target.value("outrider_target_prefix_cache_hits_total") > 0


def test_blocks_that_are_only_kept_make_room(prompts: list[str]) -> None:
    small = ("--kv-blocks", "20", "--block-size", "16")
    with cluster(target=small, draft=small) as c:
        for prompt in prompts[:8]:
            c.generate(prompt[:300], k=2, temperature=0, max_tokens=20, ignore_eos=True)
        metrics = c.target.metrics()
        assert metrics.value("outrider_target_preemptions_total") == 0
        kept = [metrics.value(f"outrider_target_kv_blocks_{state}") for state in ("used", "cached", "free")]
        assert sum(kept) == 20


def test_scoring_a_prompt_that_was_seen_scores_all_of_it(pair: Cluster, prompts: list[str]) -> None:
    scored = []
    for _ in range(2):
        wanted = request(system_prompt(prompts), max_tokens=1, k=0)
        wanted.logprobs.prompt = 1
        scored.append([position.token.logprob for position in pair.score(wanted)])
    assert scored[0] == scored[1] and len(scored[0]) > 200


def test_a_length_chosen_by_the_policy_changes_no_greedy_token(pair: Cluster, prompts: list[str]) -> None:
    drafted = 0
    for prompt in prompts[:6]:
        plain = pair.generate(prompt, k=0, temperature=0, max_tokens=60, ignore_eos=True)
        chosen = pair.generate(prompt, temperature=0, max_tokens=60, ignore_eos=True, trace=True)
        assert chosen.tokens == plain.tokens
        drafted += chosen.speculation.drafted
    assert drafted > 0, "the first answers at least draft, to learn what that costs"


def test_a_seed_fixes_the_length_where_the_answer_depends_on_it(pair: Cluster, prompts: list[str]) -> None:
    lengths = set()
    for seed in range(4):
        answer = pair.generate(prompts[seed], temperature=1, seed=seed, max_tokens=60, ignore_eos=True, trace=True)
        lengths |= {len(trace.drafted) for trace in answer.rounds[1:-4]}
        assert pair.generate(prompts[seed], temperature=1, seed=seed, max_tokens=60, ignore_eos=True,
                             k=5).tokens == answer.tokens
    assert lengths == {5}
