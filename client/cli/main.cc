// The command line.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "client/cli/flags.h"
#include "common/obs/flags.h"
#include "common/obs/version.h"

namespace outrider {
namespace {

absl::StatusOr<int> Run(int argc, char** argv) {
  CLI::App app("Speculative decoding as services: a draft model runs ahead, the target model decides.",
               "outrider");
  app.set_version_flag("--version", "outrider " + VersionAndCommit());
  app.require_subcommand(1);
  GenerateFlags generate;
  ChatFlags chat;
  LocalServicesOptions up;
  DescribeFlags describe;
  HealthFlags health;
  TopFlags top;
  ExplainFlags explain;
  CompareFlags compare;
  CLI::App* generate_command = app.add_subcommand("generate", "continue a text, or answer a question");
  CLI::App* chat_command = app.add_subcommand("chat", "talk with a model");
  CLI::App* up_command = app.add_subcommand("up", "start coordinator, draft and target, and stay");
  CLI::App* describe_command = app.add_subcommand("describe", "say what a coordinator serves");
  CLI::App* health_command =
      app.add_subcommand("health", "say whether a service is ready, also by the exit code");
  CLI::App* top_command = app.add_subcommand("top", "watch a coordinator and its servers at work");
  CLI::App* explain_command =
      app.add_subcommand("explain", "show rounds token by token: p, q, u and what is drawn");
  CLI::App* compare_command =
      app.add_subcommand("compare", "show that every drafter gives the target's texts, and how fast");
  DefineGenerateFlags(*generate_command, generate);
  DefineChatFlags(*chat_command, chat);
  DefineUpFlags(*up_command, up);
  DefineDescribeFlags(*describe_command, describe);
  DefineHealthFlags(*health_command, health);
  DefineTopFlags(*top_command, top);
  DefineExplainFlags(*explain_command, explain);
  DefineCompareFlags(*compare_command, compare);
  if (const std::optional<int> end = ParseCommandLine(app, argc, argv)) return *end;
  if (generate_command->parsed()) return RunGenerate(generate);
  if (chat_command->parsed()) return RunChat(chat);
  if (up_command->parsed()) return RunUp(up);
  if (health_command->parsed()) return RunHealth(health);
  if (top_command->parsed()) return RunTop(top);
  if (explain_command->parsed()) return RunExplain(explain);
  if (compare_command->parsed()) return RunCompare(compare);
  return RunDescribe(describe);
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  const absl::StatusOr<int> end = outrider::Run(argc, argv);
  if (end.ok()) return *end;
  std::fprintf(stderr, "error: %s\n", std::string(end.status().message()).c_str());
  return 1;
}
