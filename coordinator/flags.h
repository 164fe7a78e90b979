// The coordinator's command line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "common/rpc/credentials.h"
#include "common/serve/server_process.h"
#include "coordinator/admission/admission.h"
#include "coordinator/decode/drafters/local_drafters.h"

namespace outrider {

struct Flags {
  ProcessFlags process{.server = {.max_receive_bytes = 4 << 20}, .metrics_listen = "127.0.0.1:9070"};
  std::string listen = "127.0.0.1:7070";
  std::string http_listen = "127.0.0.1:8070";
  bool http_tls_terminated = false;
  std::string http_token_file;
  std::vector<std::string> allowed_origins;
  std::vector<std::string> served_model_names;
  std::vector<std::string> targets = {"127.0.0.1:7072"};
  std::vector<std::string> drafts = {"127.0.0.1:7071"};
  std::vector<std::string> second_drafts;
  double resolve_seconds = 5;
  bool mixed_numerics = false;
  ChannelSecurity backend;
  std::string tokenizer;
  bool control_tokens_in_chat = false;
  std::string generation_config = "auto";
  std::string draft_tokens = "auto";
  double draft_budget_seconds = 0.1;
  double stream_interval_seconds = 0.005;
  double target_wait_seconds = 60;
  double item_timeout_seconds = 300;
  std::string rule = "token";
  std::string drafter;
  std::string schedule = "auto";
  std::string tree = "none";
  int run_ahead_branches = 8;
  NgramOptions ngram;
  AdmissionLimits admission;
  bool share_prefix_cache = false;
  std::string cache_key_file;
};

void DefineFlags(CLI::App& app, Flags& flags);

}  // namespace outrider
