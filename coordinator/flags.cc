#include "coordinator/flags.h"

#include "absl/strings/str_cat.h"
#include "common/gguf/model_path.h"
#include "common/rpc/drafters.h"
#include "common/rpc/security_flags.h"
#include "coordinator/api/parse_request.h"

namespace outrider {

void DefineFlags(CLI::App& app, Flags& flags) {
  const auto add_option = [&app](const char* flag, auto& value, const char* what,
                                 const CLI::Validator& check) {
    app.add_option(flag, value, what)->check(check)->capture_default_str();
  };
  app.option_defaults()->group("Model");
  app.add_option("--tokenizer", flags.tokenizer,
                 absl::StrCat("tokenizer.json of the models, or ", kModelNames))
      ->required();
  app.add_flag(
      "--control-tokens-in-chat", flags.control_tokens_in_chat,
      "what looks like a control token in a message is one, as in transformers; otherwise it is text");
  add_option(
      "--generation-config", flags.generation_config,
      "auto: how the model is sampled from, where a request does not say, is for the generation_config.json "
      "beside the tokenizer to say, which a GGUF file has not; none",
      CLI::IsMember({"auto", "none"}));
  const auto add_servers = [&app](const char* flag, std::vector<std::string>& servers, const char* what) {
    app.add_option(flag, servers, what)->allow_extra_args(false)->default_str(servers.front());
  };
  app.option_defaults()->group("Target and draft services");
  add_servers("--target", flags.targets,
              "address of a target service; may be given again: each request is on one of them. "
              "dns:///NAME:PORT: all that the name resolves to");
  add_servers("--draft", flags.drafts, "address of a draft service, likewise; empty: none");
  app.add_option(
         "--second-draft", flags.second_drafts,
         "address of a draft service with another model, likewise: with the drafter both_models it proposes "
         "beside the first")
      ->allow_extra_args(false);
  add_option("--resolve-interval", flags.resolve_seconds,
             "seconds from one time that dns:///NAME:PORT is resolved to the next", CLI::Range(0.1, 86400.0));
  add_option("--target-wait", flags.target_wait_seconds,
             "seconds that requests wait for a target that is away; then they end, and the coordinator is "
             "not ready",
             CLI::Range(0.1, 86400.0));
  add_option("--item-timeout", flags.item_timeout_seconds,
             "seconds without any answer after which a server that has items to answer counts as lost; more "
             "than the longest computation of a prompt takes",
             CLI::Range(0.1, 86400.0));
  app.add_flag("--mixed-numerics", flags.mixed_numerics,
               "targets may compute with different dtypes, kernels or libraries: a request that moves from "
               "one to another may then continue with other tokens than it would have had");
  DefineChannelSecurityFlags(app, "backend", "target and draft", flags.backend);
  DefineAddressFlag(app, "--listen", flags.listen);
  DefineListenFlags(app, flags.process);
  app.option_defaults()->group("OpenAI's API");
  app.add_option("--http-listen", flags.http_listen,
                 "HTTP address of OpenAI's API, HOST:PORT; port 0 picks one, empty: none")
      ->capture_default_str();
  app.add_flag("--http-tls-terminated", flags.http_tls_terminated,
               "a proxy in front of --http-listen terminates TLS: HTTP is served without it and API keys are "
               "checked all the same");
  app.add_option("--http-token-file", flags.http_token_file,
                 "clients of --http-listen must send one of these bearer tokens, one a line; --token-file");
  app.add_option("--allowed-origins", flags.allowed_origins,
                 "origins of web pages that may use --http-listen, https://HOST or with a port; may be given "
                 "again; *: all")
      ->check([](const std::string& origin) {
        const bool is_origin = origin == "*" || origin.find("://") != std::string::npos;
        return is_origin ? std::string() : "'" + origin + "' is no origin; allowed: SCHEME://HOST[:PORT], *";
      });
  app.add_option("--served-model-name", flags.served_model_names,
                 "name of the model in OpenAI's API and vLLM's protocol; may be given again: the first is in "
                 "answers, requests may use any; the target's folder or file")
      ->check([](const std::string& name) { return name.empty() ? "a name is empty" : std::string(); });
  app.option_defaults()->group("Speculation");
  add_option("--draft-tokens", flags.draft_tokens,
             "K, unless a request says otherwise; auto: chosen round by round from measured times and "
             "acceptance, 5 where that would change what a seed gives",
             CLI::IsMember({"auto"}) | CLI::Range(0, kMaxDraftTokens));
  add_option("--draft-budget", flags.draft_budget_seconds,
             "seconds that the draft has for a proposal; it answers with what it has by then",
             CLI::Range(0.001, 60.0));
  app.add_option("--drafter", flags.drafter,
                 "who drafts, unless a request says otherwise; medusa, blockwise, eagle, layer_skip and pass "
                 "are the target itself, if it has the heads; "
                 "model if there is a draft service, else ngram")
      ->check(CLI::IsMember(DrafterNames()));
  add_option("--rule", flags.rule, "token, block or coupled, unless a request says otherwise",
             CLI::IsMember({"token", "block", "coupled"}));
  add_option("--schedule", flags.schedule,
             "lockstep, run_ahead (the draft also works while the target verifies) or auto (whichever was "
             "measured to be faster), unless a request says otherwise; lockstep without a draft service",
             CLI::IsMember({"lockstep", "run_ahead", "auto"}));
  app.add_option("--tree", flags.tree, "none, auto, or a tree (2x2x1, chains:N, budget:N) to draft instead")
      ->check(ProblemOfTree)
      ->capture_default_str();
  add_option("--run-ahead-branches", flags.run_ahead_branches,
             "most outcomes of a verification that are drafted for while it runs", CLI::Range(1, 64));
  add_option("--ngram-max-tokens", flags.ngram.max_tokens, "most tokens that the n-gram drafter proposes",
             CLI::Range(1, kMaxDraftTokens));
  add_option("--ngram-context", flags.ngram.max_context, "tokens of its longest context",
             CLI::Range(1, NgramTable::kMaxContext));
  app.option_defaults()->group("Clients and their requests");
  add_option("--max-requests", flags.admission.max_samples,
             "most requests in progress, each sample counted; more wait", CLI::Range(1, 1 << 20));
  add_option("--max-waiting-requests", flags.admission.max_waiting,
             "most requests of one client that wait, clients taking turns; more are refused",
             CLI::Range(0, 1 << 20));
  app.add_flag(
      "--share-prefix-cache", flags.share_prefix_cache,
      "prompts of one client may be computed from the cache of another's, who can tell by the time of "
      "the first token what others have sent; off: each client has its own");
  app.add_option("--cache-key-file", flags.cache_key_file,
                 "a secret that coordinators share, so that each finds the prompts that a client has sent to "
                 "another; without it each has a key of its own");
  add_option("--stream-interval", flags.stream_interval_seconds,
             "seconds from one chunk of a stream to the next; tokens that come meanwhile leave together, the "
             "first at once; 0: each round's leave by themselves",
             CLI::Range(0.0, 10.0));
  add_option("--max-request-bytes", flags.process.server.max_receive_bytes, "size of the largest request",
             CLI::Range(1024, kMaxMessageBytes / 2));
  DefineDrainAndLogFlags(app, "seconds that running requests have after SIGTERM", flags.process);
}

}  // namespace outrider
