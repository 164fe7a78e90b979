#include "client/cli/flags.h"

#include <CLI/CLI.hpp>
#include <functional>

#include "absl/strings/str_cat.h"
#include "common/gguf/model_path.h"
#include "common/rpc/address.h"
#include "common/rpc/drafters.h"
#include "common/rpc/security_flags.h"
#include "common/spec/status.h"
#include "common/text/strings.h"

namespace outrider {
namespace {

// The problem of an address; empty if there is none.
std::string ProblemOfListen(const std::string& address) {
  return std::string(CheckListenAddress(address).message());
}
std::string ProblemOfHostPort(const std::string& address) {
  if (address.empty() || ParseHostPort(address)) return "";
  return absl::StrCat("'", address, "' is not HOST:PORT");
}

// Defines a flag that passes its value to `set`, which is not called if the flag is missing or empty.
template <class T>
CLI::Option* AddField(CLI::App& command, const char* flag, std::function<void(T)> set, const char* help) {
  const auto set_if_given = [set](const std::optional<T>& value) {
    if (value) set(*value);
  };
  return command.add_option_function<std::optional<T>>(flag, set_if_given, help);
}
// The same for a flag that sets a field of `message`.
template <class Message, class T>
CLI::Option* AddField(CLI::App& command, const char* flag, Message* message, void (Message::*set)(T),
                      const char* help) {
  return AddField<T>(
      command, flag, [message, set](T value) { (message->*set)(value); }, help);
}
// The same for a field of an enumeration type, whose value is given by one of `names`.
template <class Message, class Enum>
void AddName(CLI::App& command, const char* flag, Message* message, void (Message::*set)(Enum),
             const std::vector<std::string>& names, const char* help) {
  const auto set_named = [message, set](const std::string& name) { (message->*set)(FromName<Enum>(name)); };
  command.add_option_function<std::string>(flag, set_named, help)->check(CLI::IsMember(names));
}

std::vector<CLI::Option*> DefineServiceFlags(CLI::App& command, const char* group,
                                             LocalServicesOptions& options) {
  command.option_defaults()->group(group);
  const auto add = [&command](const char* flag, auto& value, const std::string& help) {
    return command.add_option(flag, value, help)->capture_default_str();
  };
  return {add("--target-model,--model", options.target_model,
              absl::StrCat("the target model: ", kModelNames, "; the shipped one")),
          add("--draft-model", options.draft_model,
              "the draft model, likewise; LAYERS.gguf+FILE.gguf for layers of one file with all else of "
              "another; or none to draft with n-grams; the shipped one, none with --target-model"),
          command
              .add_option(
                  "--heads", options.heads,
                  "folder of heads that the target proposes with, for --drafter medusa, blockwise, eagle, "
                  "layer_skip or pass; may be given again; those of the shipped target, '' for none")
              ->allow_extra_args(false),
          add("--engine", options.engine,
              "of draft and target: native, or torch for libtorch, exact up to rounding"),
          add("--device", options.device, "of draft and target: cpu or cuda:N"),
          add("--draft-device", options.draft_device, "of the draft, if it is to be on another one"),
          add("--dtype", options.dtype,
              "of draft and target: auto, float32, bfloat16 or int8; on a GPU auto, bfloat16 or fp8"),
          add("--draft-dtype", options.draft_dtype, "of the draft, if it is to have another one"),
          add("--frequent-tokens", options.frequent_tokens,
              "that the draft proposes besides the text's, so that its head is smaller; 0: all")
              ->check(CLI::Range(0, 1 << 24)),
          add("--parallel-draft", options.parallel_draft,
              "tokens that the draft drafts in one forward pass; its model must be trained to")
              ->check(CLI::Range(1, 64)),
          add("--threads", options.threads, "threads of draft and target each; 0: one per CPU")
              ->check(CLI::Range(0, 1024))};
}

// Defines the flags that constrain the output, of which only one may be given. Returns them.
std::vector<CLI::Option*> DefineGrammarFlags(CLI::App& command, v1::SamplingParams* sampling) {
  command.option_defaults()->group("Structured output, one of");
  // Defines a flag whose value is a file's content.
  const auto add_file = [&](const char* flag, void (*set)(v1::Grammar*, std::string), const char* help) {
    const auto read = [sampling, flag, set](const std::string& path) {
      std::optional<std::string> text = ReadFile(path);
      if (!text) throw CLI::ValidationError(flag, absl::StrCat("'", path, "' cannot be read, or is empty"));
      set(sampling->mutable_grammar(), *std::move(text));
    };
    return command.add_option_function<std::string>(flag, read, help);
  };
  std::vector<CLI::Option*> flags = {
      add_file(
          "--json-schema",
          [](v1::Grammar* grammar, std::string text) { grammar->set_json_schema(std::move(text)); },
          "file with a JSON Schema; the output is JSON that validates against it"),
      command.add_option_function<std::string>(
          "--regex", [sampling](const std::string& regex) { sampling->mutable_grammar()->set_regex(regex); },
          "the output matches this regular expression as a whole"),
      command
          .add_option_function<std::vector<std::string>>(
              "--choice",
              [sampling](const std::vector<std::string>& texts) {
                for (const std::string& text : texts) {
                  sampling->mutable_grammar()->mutable_choices()->add_texts(text);
                }
              },
              "the output is this text, or one of several; may be given again")
          ->allow_extra_args(false),
      add_file(
          "--grammar", [](v1::Grammar* grammar, std::string text) { grammar->set_ebnf(std::move(text)); },
          "file with a grammar in llama.cpp's GBNF, which the output follows"),
  };
  for (auto flag = flags.begin(); flag != flags.end(); ++flag) {
    for (auto other = flags.begin(); other != flag; ++other) (*flag)->excludes(*other);
  }
  return flags;
}

void DefineBeamFlags(CLI::App& command, v1::GenerateRequest* request,
                     const std::vector<CLI::Option*>& excluded) {
  command.option_defaults()->group("Beam search");
  CLI::Option* width = AddField<uint32_t>(
      command, "--beam-width", [request](uint32_t texts) { request->mutable_beam()->set_width(texts); },
      "search for the likeliest text, following this many; without it, sample");
  for (CLI::Option* option : excluded) width->excludes(option);
  AddField<uint32_t>(
      command, "--beam-draft-width",
      [request](uint32_t texts) { request->mutable_beam()->set_draft_width(texts); },
      "how many texts the draft follows; three times the width")
      ->needs(width);
  AddField<double>(
      command, "--length-penalty",
      [request](double power) { request->mutable_beam()->set_length_penalty(power); },
      "a text is ranked by its log-probability over length to this power; 1")
      ->needs(width);
  AddField<std::string>(
      command, "--beam-stop",
      [request](const std::string& stop) { request->mutable_beam()->set_stop(FromName<v1::BeamStop>(stop)); },
      "when a search ends: auto, first (as soon as enough texts have ended) or never (when none can "
      "become better); auto")
      ->check(CLI::IsMember({"auto", "first", "never"}))
      ->needs(width);
}

// Defines the flags that choose a running coordinator, or services to start.
void DefineConnectionFlags(CLI::App& command, ChatFlags& flags) {
  constexpr char kGroup[] = "A coordinator that is running";
  CLI::Option* address = command
                             .add_option("--address", flags.address,
                                         "coordinator to ask; without it, services are started and stopped")
                             ->group(kGroup);
  for (CLI::Option* option :
       DefineServiceFlags(command, "Services that are started, without --address", flags.services)) {
    option->excludes(address);
  }
  command.option_defaults()->group(kGroup);
  for (CLI::Option* option : DefineChannelSecurityFlags(command, "tls", "the coordinator", flags.security)) {
    option->needs(address);
  }
}

// Defines flags for sampling, stopping and speculation. Returns those that exclude beam search.
std::vector<CLI::Option*> DefineRequestFlags(CLI::App& command, v1::GenerateRequest* request) {
  v1::SamplingParams* sampling = request->mutable_sampling();
  v1::StopOptions* stop = request->mutable_stop();
  v1::SpeculationOptions* speculation = request->mutable_speculation();
  command.option_defaults()->group("Sampling");
  AddField(command, "--max-tokens", stop, &v1::StopOptions::set_max_tokens,
           "most tokens to emit; what the context leaves");
  AddField(command, "--min-tokens", sampling, &v1::SamplingParams::set_min_tokens,
           "tokens before the text may end");
  AddField(command, "--temperature", sampling, &v1::SamplingParams::set_temperature,
           "0 takes the most probable token; 1");
  AddField(command, "--top-k", sampling, &v1::SamplingParams::set_top_k,
           "keep the k most probable tokens; all");
  AddField(command, "--top-p", sampling, &v1::SamplingParams::set_top_p,
           "keep the smallest set with this probability; 1");
  AddField(command, "--min-p", sampling, &v1::SamplingParams::set_min_p,
           "drop tokens below this share of the largest probability; 0");
  AddField(command, "--repetition-penalty", sampling, &v1::SamplingParams::set_repetition_penalty,
           "divides logits of tokens seen; 1");
  AddField(command, "--presence-penalty", sampling, &v1::SamplingParams::set_presence_penalty,
           "off the logits of tokens emitted; 0");
  AddField(command, "--frequency-penalty", sampling, &v1::SamplingParams::set_frequency_penalty,
           "the same, once for each time; 0");
  AddField(command, "--seed", request, &v1::GenerateRequest::set_seed, "key of all random numbers; drawn");
  command
      .add_option_function<std::vector<std::string>>(
          "--stop",
          [stop](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) stop->add_strings(text);
          },
          "text that ends the answer; may be given again")
      ->allow_extra_args(false);
  command.add_flag_function(
      "--ignore-eos", [stop](int64_t times) { stop->set_ignore_eos(times > 0); },
      "go on past the model's end of text");
  const std::vector<CLI::Option*> grammar_flags = DefineGrammarFlags(command, sampling);
  command.option_defaults()->group("Speculation");
  AddField(command, "--draft-tokens", speculation, &v1::SpeculationOptions::set_draft_tokens,
           "K, tokens drafted a round; the coordinator's default");
  AddName(command, "--drafter", speculation, &v1::SpeculationOptions::set_drafter, DrafterNames(),
          "who guesses; the coordinator's default");
  AddName(command, "--rule", speculation, &v1::SpeculationOptions::set_rule, {"token", "block", "coupled"},
          "token, block or coupled; the coordinator's default");
  AddName(command, "--schedule", speculation, &v1::SpeculationOptions::set_schedule,
          {"lockstep", "run_ahead", "auto"},
          "lockstep, run_ahead or auto: whether the draft works while the target verifies; the coordinator's "
          "default");
  AddField<std::string>(
      command, "--tree", [speculation](const std::string& tree) { speculation->set_tree(tree); },
      "draft a tree: 2x2x1 for the children of each node by depth, chains:N, budget:N, auto or "
      "none; the coordinator's default");
  AddName(command, "--sibling-order", speculation, &v1::SpeculationOptions::set_sibling_order,
          {"given", "random"},
          "given or random: in which order drafted tokens for one position are tried; given");
  AddField(command, "--draft-top-n", speculation, &v1::SpeculationOptions::set_draft_top_n,
           "tokens kept of the draft's distribution; the draft service's default");
  AddField(command, "--draft-temperature", speculation, &v1::SpeculationOptions::set_draft_temperature,
           "the draft's own; the target's");
  AddField(command, "--lenience", speculation, &v1::SpeculationOptions::set_lenience,
           "below 1: faster and not exact; 1");
  AddField(command, "--max-draft-context", speculation, &v1::SpeculationOptions::set_max_context,
           "draft only while prompt and answer have fewer tokens");
  return grammar_flags;
}

}  // namespace

void DefineGenerateFlags(CLI::App& command, GenerateFlags& flags) {
  command.add_option("prompt", flags.prompt,
                     "text to continue; standard input if not given, less one line end");
  DefineConnectionFlags(command, flags);
  command.option_defaults()->group("Prompt");
  CLI::Option* chat = command.add_flag(
      "--chat", flags.chat, "PROMPT is a question, which the model's chat template puts into its form");
  command.add_option("--system", flags.system, "what the model is told before it")->needs(chat);
  v1::GenerateRequest* request = &flags.request;
  AddField<std::string>(
      command, "--prediction", [request](const std::string& text) { request->set_prediction(text); },
      "a text that much of the answer is likely to repeat, from which it is drafted");
  const std::vector<CLI::Option*> grammar_flags = DefineRequestFlags(command, request);
  command.option_defaults()->group("Output");
  CLI::Option* n = AddField(command, "--n", request, &v1::GenerateRequest::set_n,
                            "samples of one prompt, or best texts of a search; 1");
  CLI::Option* trace = command
                           .add_flag_function(
                               "--trace", [request](int64_t times) { request->set_trace(times > 0); },
                               "a line a round: accepted, rejected, corrected")
                           ->excludes(n);
  CLI::Option* json =
      command.add_flag("--json", flags.json, "one JSON object instead of text")->excludes(trace);
  command
      .add_flag("--compare-plain", flags.compare_plain,
                "decode it again without speculation, and say how fast that was and whether the text is the "
                "same; with --temperature 0 or --rule coupled")
      ->excludes(n)
      ->excludes(json);
  command
      .add_option("--timeline", flags.timeline,
                  "SVG file for a picture of the rounds' times; with --compare-plain of both answers")
      ->excludes(n);
  AddField<uint32_t>(
      command, "--logprobs", [request](uint32_t top) { request->mutable_logprobs()->set_top(top); },
      "with each token, this many alternatives; 0: the token's own")
      ->needs(json);
  AddField<uint32_t>(
      command, "--prompt-logprobs", [request](uint32_t top) { request->mutable_logprobs()->set_prompt(top); },
      "the same of the prompt's tokens")
      ->needs(json);
  DefineBeamFlags(command, request, grammar_flags);
}

void DefineChatFlags(CLI::App& command, ChatFlags& flags) {
  DefineConnectionFlags(command, flags);
  command.option_defaults()->group("Prompt");
  command.add_option("--system", flags.system, "what the model is told before the conversation");
  DefineRequestFlags(command, &flags.request);
}

void DefineUpFlags(CLI::App& command, LocalServicesOptions& options) {
  DefineServiceFlags(command, "Models", options);
  options.listen = {"127.0.0.1:7072", "127.0.0.1:7071", kDefaultAddress};
  options.metrics_listen = {kDefaultMetrics[kTarget], kDefaultMetrics[kDraft], kDefaultMetrics[kCoordinator]};
  options.http_listen = "127.0.0.1:8070";
  command.option_defaults()->group("Addresses");
  for (Service service : {kCoordinator, kDraft, kTarget}) {
    command
        .add_option(kListenFlags[service], options.listen[service],
                    absl::StrCat("gRPC address of the ", kServiceNames[service],
                                 ", HOST:PORT or unix:PATH; port 0 picks one"))
        ->check(ProblemOfListen)
        ->capture_default_str();
  }
  command
      .add_option(kHttpListenFlag, options.http_listen,
                  "HTTP address of OpenAI's API, HOST:PORT; port 0 picks one, empty: none")
      ->check(ProblemOfHostPort)
      ->capture_default_str();
  for (Service service : {kCoordinator, kDraft, kTarget}) {
    command
        .add_option(kMetricsListenFlags[service], options.metrics_listen[service],
                    absl::StrCat("address of the ", kServiceNames[service],
                                 "'s /metrics, HOST:PORT; port 0 picks one, empty: none"))
        ->check(ProblemOfHostPort)
        ->capture_default_str();
  }
  command.option_defaults()->group("TLS and tokens of the coordinator, for OpenAI's API too");
  DefineServerSecurityFlags(command, options.security);
  command.add_flag("--insecure", options.insecure,
                   "listen without TLS also where other hosts can connect, with all services");
  command.option_defaults()->group("OpenAI's API");
  command.add_option(
      "--served-model-name", options.served_model_names,
      "name of the model in that API; may be given again: the first is in answers, requests may "
      "use any; the target's folder or file");
  command
      .add_option("--api-key-file", options.api_key_file,
                  "who uses that API must send one of these keys, one a line, as a bearer token")
      ->check(CLI::ExistingFile);
}

void DefineCompareFlags(CLI::App& command, CompareFlags& flags) {
  DefineConnectionFlags(command, flags);
  command.option_defaults()->group("Comparison");
  command
      .add_option(
          "--prompt", flags.prompts,
          "text that is continued greedily with every drafter; may be given again: the first is sampled from "
          "too; four of ours")
      ->allow_extra_args(false);
  command.add_option("--max-tokens", flags.max_tokens, "of each greedy text")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--samples", flags.samples, "texts sampled with each drafter")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
}

void DefineDescribeFlags(CLI::App& command, DescribeFlags& flags) {
  command.add_option("--address", flags.address, "coordinator to ask")->capture_default_str();
  DefineChannelSecurityFlags(command, "tls", "the coordinator", flags.security);
  command.add_flag("--json", flags.json, "one JSON object instead of text");
}

void DefineHealthFlags(CLI::App& command, HealthFlags& flags) {
  command.add_option("--address", flags.address, "gRPC or health address of a coordinator, draft or target")
      ->capture_default_str();
  command.add_option("--service", flags.service,
                     "empty: whether it can answer; live: whether it is to be left alone");
  DefineChannelSecurityFlags(command, "tls", "the service", flags.security);
}

void DefineTopFlags(CLI::App& command, TopFlags& flags) {
  for (Service service : {kCoordinator, kTarget, kDraft}) {
    const std::string name = kServiceNames[service];
    command.add_option("--" + name + "-metrics", flags.metrics[service], "metrics address of the " + name)
        ->capture_default_str();
  }
  command.add_option("--interval", flags.interval_seconds, "seconds from one look to the next")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  command.add_flag("--once", flags.once, "print one interval and end, as without a terminal");
}

void DefineExplainFlags(CLI::App& command, ExplainFlags& flags) {
  command.add_option("prompt", flags.prompt, "text to continue")->required();
  command.add_option("--model,--target-model", flags.target_model,
                     absl::StrCat(kModelNames, "; the shipped one"));
  command.add_option("--draft-model", flags.draft_model, "of the same tokenizer; the shipped one");
  const auto add = [&command](const char* flag, auto& value, const char* help, auto least, auto most) {
    command.add_option(flag, value, help)->check(CLI::Range(least, most))->capture_default_str();
  };
  add("--draft-tokens", flags.draft_tokens, "K, tokens that are drafted in each round", 1, 64);
  add("--rounds", flags.rounds, "rounds that are shown", 1, 1000);
  add("--temperature", flags.temperature, "of both models; 0: greedy", 0.0, 100.0);
  add("--top-k", flags.top_k, "0: off", 0, 1 << 24);
  add("--top-p", flags.top_p, "1: off", 1e-6, 1.0);
  command.add_option("--seed", flags.seed, "of all random numbers")->capture_default_str();
}

absl::Status SettleDraftModel(LocalServicesOptions& options) {
  if (options.draft_model.empty() && !options.target_model.empty()) options.draft_model = kNoDraftModel;
  if (options.draft_model != kNoDraftModel) return absl::OkStatus();
  const char* unused = !options.draft_dtype.empty()    ? "--draft-dtype"
                       : !options.draft_device.empty() ? "--draft-device"
                       : options.frequent_tokens > 0   ? "--frequent-tokens"
                       : options.parallel_draft > 1    ? "--parallel-draft"
                                                       : nullptr;
  if (unused == nullptr) return absl::OkStatus();
  return Invalid(unused, " is for a draft model, and there is none: name one with --draft-model");
}

}  // namespace outrider
