// How the C++ SDK resumes an answer that breaks off, against a fake coordinator that breaks off where it is
// told.
#include "client/sdk/client.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include <vector>

#include "bench/temporary_folder.h"
#include "outrider/v1/inference.grpc.pb.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;

// Scores a prompt of six tokens in pieces, the last together with the first of three generated tokens.
class BreakingCoordinator final : public v1::Inference::Service {
 public:
  grpc::Status Generate(grpc::ServerContext* /*context*/, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    const size_t call = asked_for_prompt.size();
    const int chunks_here = call < chunks_until_end.size() ? chunks_until_end[call] : 100;
    asked_for_prompt.push_back(request->logprobs().has_prompt());
    int sent = 0;
    const auto send = [&](const v1::GenerateResponse& chunk) {
      return sent++ < chunks_here && writer->Write(chunk);
    };
    v1::GenerateResponse chunk;
    for (uint32_t token = 2; request->logprobs().has_prompt() && token <= 6; ++token) {
      chunk.add_prompt_logprobs()->mutable_token()->set_id(token);
      if (token % 2 == 0 && token < 6) {
        if (!send(chunk)) return Lost();
        chunk.Clear();
      }
    }
    for (int i = request->resume_from_size(); i < 3; ++i) {
      chunk.set_position(static_cast<uint32_t>(i));
      chunk.add_tokens()->set_id(static_cast<uint32_t>(100 + i));
      if (i == 2) chunk.mutable_finish()->set_reason(v1::FINISH_REASON_LENGTH);
      if (!send(chunk)) return Lost();
      chunk.Clear();
    }
    return grpc::Status::OK;
  }

  std::vector<int> chunks_until_end;  // for each call; later ones are complete
  std::vector<bool> asked_for_prompt;

 private:
  static grpc::Status Lost() { return {grpc::StatusCode::UNAVAILABLE, "lost"}; }
};

TEST(Client, NothingOfThePromptComesTwiceHoweverOftenTheAnswerBreaksOff) {
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder.path() + "/socket";
  BreakingCoordinator coordinator;
  coordinator.chunks_until_end = {1, 3};
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&coordinator);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();

  const absl::StatusOr<Client> client = Client::Connect(address, {.retry_for = absl::InfiniteDuration()});
  ASSERT_TRUE(client.ok()) << client.status();
  v1::GenerateRequest request;
  request.mutable_logprobs()->set_prompt(0);
  std::vector<uint32_t> seen;
  const absl::StatusOr<Completion> completion =
      client->Generate(request, [&](const v1::GenerateResponse& chunk) {
        for (const v1::PositionLogprobs& position : chunk.prompt_logprobs())
          seen.push_back(position.token().id());
      });
  ASSERT_TRUE(completion.ok()) << completion.status();
  EXPECT_THAT(seen, ElementsAre(2, 3, 4, 5, 6));
  EXPECT_EQ(completion->prompt_logprobs.size(), 5u);
  EXPECT_EQ(completion->tokens.size(), 3u);
  // The second call brought the first token, and with it the last part of the prompt.
  EXPECT_THAT(coordinator.asked_for_prompt, ElementsAre(true, true, false));
}

}  // namespace
}  // namespace outrider
