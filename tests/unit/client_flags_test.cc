#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/temporary_folder.h"
#include "client/cli/flags.h"
#include "common/obs/flags.h"

namespace outrider {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// These parse as the program does, and throw CLI11's exceptions.
GenerateFlags Parse(const std::vector<std::string>& arguments) {
  CLI::App command;
  GenerateFlags flags;
  DefineGenerateFlags(command, flags);
  ParseArguments(command, arguments);
  return flags;
}

LocalServicesOptions ParseUp(const std::vector<std::string>& arguments) {
  CLI::App command;
  LocalServicesOptions options;
  DefineUpFlags(command, options);
  ParseArguments(command, arguments);
  return options;
}

v1::GenerateRequest RequestOf(std::vector<std::string> arguments) {
  return Parse(std::move(arguments)).request;
}

std::string ErrorOf(std::vector<std::string> arguments) {
  try {
    Parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "none";
}

TEST(ParseArguments, NothingAfterTheSignIsTheEmptyValueAndTakesNoOther) {
  EXPECT_EQ(ParseUp({"--http-listen=", "--served-model-name=", "--listen=127.0.0.1:1"}).listen[kCoordinator],
            "127.0.0.1:1");
  EXPECT_EQ(ParseUp({"--http-listen=", "--listen=127.0.0.1:1"}).http_listen, "");
  EXPECT_THAT(ParseUp({"--served-model-name=", "--insecure"}).served_model_names, ElementsAre(""));
  EXPECT_TRUE(ParseUp({"--served-model-name=", "--insecure"}).insecure);
}

TEST(ParseArguments, AFlagIsNoValueOfAnother) {
  EXPECT_EQ(ErrorOf({"p", "--stop", "--seed", "3"}), "--stop: needs a value, and is followed by --seed");
  EXPECT_THAT(ErrorOf({"p", "--seed"}), HasSubstr("--seed"));
  EXPECT_EQ(ErrorOf({"p", "--trace="}), "--trace: true or false must follow the '='");
  EXPECT_THAT(RequestOf({"p", "--stop=--", "--stop", "-"}).stop().strings(), ElementsAre("--", "-"));
  EXPECT_EQ(Parse({"--trace", "--", "--p"}).prompt, std::string("--p"));
}

TEST(WithEnvironment, HasWhatTheCommandLineLacks) {
  CLI::App app;
  std::string level = "info", model;
  bool insecure = false;
  app.add_option("--log-level", level);
  CLI::App* up = app.add_subcommand("up");
  up->add_option("-m,--model", model);
  up->add_flag("--insecure", insecure);
  CLI::App* chat = app.add_subcommand("chat");
  chat->add_option("--model", model);
  setenv("OUTRIDER_LOG_LEVEL", "debug", 1);
  setenv("OUTRIDER_MODEL", "from the environment", 1);
  setenv("OUTRIDER_INSECURE", "true", 1);
  EXPECT_THAT(WithEnvironment(app, {}), ElementsAre("--log-level=debug"));
  EXPECT_THAT(WithEnvironment(app, {"chat", "x"}),
              ElementsAre("--log-level=debug", "chat", "--model=from the environment", "x"));
  EXPECT_THAT(WithEnvironment(app, {"up", "--model=y"}),
              ElementsAre("--log-level=debug", "up", "--insecure=true", "--model=y"));
  ParseArguments(app, WithEnvironment(app, {"up", "--model", "y"}));
  unsetenv("OUTRIDER_LOG_LEVEL");
  unsetenv("OUTRIDER_MODEL");
  unsetenv("OUTRIDER_INSECURE");
  EXPECT_EQ(level, "debug");
  EXPECT_EQ(model, "y");
  EXPECT_TRUE(insecure);
}

TEST(GenerateFlags, LeaveUnsetWhatWasNotGiven) {
  v1::GenerateRequest bare;
  bare.mutable_sampling();
  bare.mutable_stop();
  bare.mutable_speculation();
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(RequestOf({"p"}), bare));
}

TEST(GenerateFlags, DistinguishZeroFromUnset) {
  const v1::GenerateRequest request =
      RequestOf({"p", "--temperature", "0", "--seed", "0", "--draft-tokens", "0"});
  EXPECT_TRUE(request.sampling().has_temperature());
  EXPECT_TRUE(request.has_seed());
  EXPECT_TRUE(request.speculation().has_draft_tokens());
}

TEST(GenerateFlags, NameEveryDrafter) {
  for (int kind = 1; kind < v1::DrafterKind_ARRAYSIZE; ++kind) {
    if (!v1::DrafterKind_IsValid(kind)) continue;
    std::string name = v1::DrafterKind_Name(kind).substr(sizeof("DRAFTER_KIND_") - 1);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    EXPECT_EQ(RequestOf({"p", "--drafter", name}).speculation().drafter(), kind) << name;
  }
  EXPECT_THAT(ErrorOf({"p", "--drafter", "oracle"}), HasSubstr("oracle"));
}

TEST(GenerateFlags, ReachTheirFields) {
  const v1::GenerateRequest request = RequestOf({"p",
                                                 "--top-k",
                                                 "5",
                                                 "--top-p",
                                                 "0.5",
                                                 "--min-p",
                                                 "0.25",
                                                 "--repetition-penalty",
                                                 "1.5",
                                                 "--presence-penalty",
                                                 "-1",
                                                 "--frequency-penalty",
                                                 "2",
                                                 "--max-tokens",
                                                 "9",
                                                 "--min-tokens",
                                                 "3",
                                                 "--seed",
                                                 "18446744073709551615",
                                                 "--ignore-eos",
                                                 "--drafter",
                                                 "none",
                                                 "--rule",
                                                 "coupled",
                                                 "--draft-tokens",
                                                 "4",
                                                 "--trace"});
  EXPECT_EQ(request.sampling().top_k(), 5U);
  EXPECT_EQ(request.sampling().top_p(), 0.5F);
  EXPECT_EQ(request.sampling().min_p(), 0.25F);
  EXPECT_EQ(request.sampling().repetition_penalty(), 1.5F);
  EXPECT_EQ(request.sampling().presence_penalty(), -1.0F);
  EXPECT_EQ(request.sampling().frequency_penalty(), 2.0F);
  EXPECT_EQ(request.sampling().min_tokens(), 3U);
  EXPECT_EQ(request.stop().max_tokens(), 9U);
  EXPECT_TRUE(request.stop().ignore_eos());
  EXPECT_EQ(request.seed(), UINT64_MAX);
  EXPECT_EQ(request.speculation().drafter(), v1::DRAFTER_KIND_NONE);
  EXPECT_EQ(request.speculation().rule(), v1::RULE_COUPLED);
  EXPECT_EQ(request.speculation().draft_tokens(), 4U);
  EXPECT_TRUE(request.trace());
}

TEST(GenerateFlags, StopTakesOneStringAndLeavesThePrompt) {
  const GenerateFlags flags = Parse({"--stop", "river", "the prompt", "--stop", "a b"});
  EXPECT_EQ(flags.prompt, "the prompt");
  EXPECT_THAT(flags.request.stop().strings(), ElementsAre("river", "a b"));
}

// Writes files that are deleted at the end of the test.
class GrammarFlags : public testing::Test {
 protected:
  std::string FileWith(const std::string& text) {
    const std::string path = absl::StrCat(folder_.path(), "/", ++files_);
    std::ofstream(path) << text;
    return path;
  }

 private:
  const TemporaryFolder folder_;
  int files_ = 0;
};

v1::Grammar GrammarOf(std::vector<std::string> arguments) {
  return RequestOf(std::move(arguments)).sampling().grammar();
}

TEST_F(GrammarFlags, HoldTheOutputToOneGrammar) {
  EXPECT_EQ(GrammarOf({"p", "--json-schema", FileWith("{\"type\": \"null\"}\n")}).json_schema(),
            "{\"type\": \"null\"}\n");
  EXPECT_EQ(GrammarOf({"p", "--grammar", FileWith("root ::= [a-z]")}).ebnf(), "root ::= [a-z]");
  EXPECT_EQ(GrammarOf({"p", "--regex", "a+|b"}).regex(), "a+|b");
  EXPECT_THAT(GrammarOf({"--choice", "yes", "p", "--choice", "not at all"}).choices().texts(),
              ElementsAre("yes", "not at all"));
  EXPECT_THAT(ErrorOf({"p", "--regex", "a", "--choice", "a"}), HasSubstr("excludes"));
  EXPECT_THAT(ErrorOf({"p", "--json-schema", FileWith("{}"), "--grammar", FileWith("root ::= [a-z]")}),
              HasSubstr("excludes"));
  EXPECT_THAT(ErrorOf({"p", "--regex", "a", "--beam-width", "2"}), HasSubstr("excludes"));
  for (const char* flag : {"--json-schema", "--grammar"}) {
    EXPECT_EQ(ErrorOf({"p", flag, "/nowhere"}),
              absl::StrCat(flag, ": '/nowhere' cannot be read, or is empty"));
    EXPECT_THAT(ErrorOf({"p", flag, FileWith("")}), HasSubstr("is empty"));
  }
}

TEST(GenerateFlags, AWrongFlagOrValueIsNamed) {
  EXPECT_THAT(ErrorOf({"p", "--beam", "3"}), HasSubstr("--beam"));
  EXPECT_THAT(ErrorOf({"p", "--top-k", "-5"}), HasSubstr("--top-k"));
  EXPECT_THAT(ErrorOf({"p", "--max-tokens", "many"}), HasSubstr("--max-tokens"));
  EXPECT_THAT(ErrorOf({"p", "--rule", "best"}), HasSubstr("token,block,coupled"));
  EXPECT_THAT(ErrorOf({"p", "--temperature"}), HasSubstr("--temperature"));
  EXPECT_EQ(ErrorOf({"p"}), "none");
}

TEST(UpFlags, ListenOnTheUsualPortsUnlessTheySayOtherwise) {
  const LocalServicesOptions usual = ParseUp({});
  EXPECT_THAT(usual.listen, ElementsAre("127.0.0.1:7072", "127.0.0.1:7071", "127.0.0.1:7070"));
  EXPECT_THAT(usual.metrics_listen, ElementsAre("127.0.0.1:9072", "127.0.0.1:9071", "127.0.0.1:9070"));
  EXPECT_EQ(usual.http_listen, "127.0.0.1:8070");
  const LocalServicesOptions given =
      ParseUp({"--listen", "unix:c.sock", "--draft-listen", "[::1]:1", "--target-listen", "0.0.0.0:0",
               "--metrics-listen", "a:2", "--draft-metrics-listen", "", "--target-metrics-listen", "b:3",
               "--http-listen", ""});
  EXPECT_THAT(given.listen, ElementsAre("0.0.0.0:0", "[::1]:1", "unix:c.sock"));
  EXPECT_THAT(given.metrics_listen, ElementsAre("b:3", "", "a:2"));
  EXPECT_EQ(given.http_listen, "");
}

TEST(UpFlags, TakeNoAddressThatNobodyCanListenOn) {
  for (const char* flag : {"--listen", "--draft-listen", "--target-listen", "--metrics-listen",
                           "--draft-metrics-listen", "--target-metrics-listen", "--http-listen"}) {
    EXPECT_THROW(ParseUp({flag, "nowhere"}), CLI::ValidationError) << flag;
  }
  EXPECT_THROW(ParseUp({"--listen", ""}), CLI::ValidationError);  // a coordinator needs an address
}

LocalServicesOptions Settled(std::vector<std::string> arguments) {
  LocalServicesOptions options = ParseUp(std::move(arguments));
  EXPECT_TRUE(SettleDraftModel(options).ok());
  return options;
}

TEST(Heads, AreFoldersAndNoneIfOneHasNoName) {
  EXPECT_THAT(ParseUp({}).heads, ElementsAre());
  EXPECT_THAT(ParseUp({"--heads", "a", "--heads", "b"}).heads, ElementsAre("a", "b"));
  EXPECT_THAT(ParseUp({"--heads", ""}).heads, ElementsAre(""));
  EXPECT_THAT(Parse({"--heads", "a", "p"}).services.heads, ElementsAre("a"));
  EXPECT_EQ(*Parse({"--heads", "a", "p"}).prompt, "p");
}

TEST(DraftModel, OfTheShippedPairGoesWithTheShippedTargetOnly) {
  EXPECT_EQ(Settled({}).draft_model, "");
  EXPECT_EQ(Settled({"--target-model", "t"}).draft_model, kNoDraftModel);
  EXPECT_EQ(Settled({"--model", "t"}).target_model, "t") << "the same in short";
  EXPECT_EQ(Settled({"--target-model", "t", "--draft-model", "d"}).draft_model, "d");
  EXPECT_EQ(Settled({"--draft-model", "d"}).draft_model, "d");
  EXPECT_EQ(Settled({"--draft-model", "none"}).draft_model, kNoDraftModel);
}

TEST(DraftModel, ThatIsNotThereTakesNoFlags) {
  for (const char* flag : {"--draft-dtype", "--draft-device"}) {
    LocalServicesOptions options = ParseUp({"--target-model", "t", flag, "cpu"});
    EXPECT_THAT(std::string(SettleDraftModel(options).message()), HasSubstr(flag));
    options.draft_model = "d";
    EXPECT_TRUE(SettleDraftModel(options).ok());
  }
}

TEST(GenerateFlags, ModelsAreForServicesThatAreStartedHere) {
  EXPECT_THAT(ErrorOf({"p", "--address", "a:1", "--target-model", "m"}), HasSubstr("excludes"));
}

TEST(UnknownArgument, NamesItAndTheNearest) {
  CLI::App app("", "program");
  app.require_subcommand(1);
  std::string value;
  app.add_subcommand("generate", "")->add_option("--temperature", value);
  app.add_subcommand("describe", "")->add_option("--address", value);
  const auto of = [&](const std::vector<std::string>& arguments) { return UnknownArgument(app, arguments); };
  EXPECT_EQ(of({"genrate", "x"}), "there is no command genrate; did you mean generate?");
  EXPECT_EQ(of({"generate", "--tempreature=1"}),
            "there is no flag --tempreature; did you mean --temperature?");
  EXPECT_EQ(of({"generate", "--qqqqqqqqqqqq"}), "there is no flag --qqqqqqqqqqqq");
  EXPECT_EQ(of({"generate", "--temperature", "1", "--", "--text"}), "");
}

TEST(ParseCommandLine, EndsWith2ForWhatIsWrongAndWith0ForHelp) {
  for (const auto& [argument, code] : {std::pair("--colour", 2), std::pair("--help", 0)}) {
    CLI::App app("", "program");
    const char* const arguments[] = {"program", argument};
    EXPECT_EQ(ParseCommandLine(app, 2, arguments), code);
  }
}

}  // namespace
}  // namespace outrider
