// When chunks are sent to a client, and which of them are joined.
#include "coordinator/api/generate_call.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "coordinator/servers/grpc_context.h"

namespace outrider {
namespace {

using ::testing::ElementsAre;

constexpr auto kNever = std::chrono::hours(1);

class ChunkPacerTest : public ::testing::Test {
 protected:
  void Start(Clock::duration interval) {
    pacer_ = std::make_shared<ChunkPacer>(context_.get_executor(), interval,
                                          [this](const v1::GenerateResponse& chunk) { Receive(chunk); });
  }
  // The next chunk, with this number of tokens.
  v1::GenerateResponse Chunk(int tokens) {
    v1::GenerateResponse chunk;
    chunk.set_position(position_);
    for (int i = 0; i < tokens; ++i) {
      chunk.add_tokens()->set_id(position_);
      chunk.mutable_text()->append(1, static_cast<char>('a' + position_++));
    }
    return chunk;
  }
  // Fails the test for tokens that are lost, sent twice or out of order.
  void Receive(const v1::GenerateResponse& chunk) {
    EXPECT_EQ(chunk.position(), received_);
    for (const v1::GeneratedToken& token : chunk.tokens()) EXPECT_EQ(token.id(), received_++);
    texts_.push_back(chunk.text());
  }

  GrpcContext context_;
  std::shared_ptr<ChunkPacer> pacer_;
  uint32_t position_ = 0, received_ = 0;
  std::vector<std::string> texts_;
};

TEST_F(ChunkPacerTest, TheFirstLeavesAtOnceAndTheLastWithWhatWaits) {
  Start(kNever);
  pacer_->Add(Chunk(1));
  EXPECT_THAT(texts_, ElementsAre("a"));
  pacer_->Add(Chunk(2));
  pacer_->Add(Chunk(3));
  EXPECT_THAT(texts_, ElementsAre("a"));
  v1::GenerateResponse last = Chunk(1);
  last.mutable_finish();
  pacer_->Add(std::move(last));
  EXPECT_THAT(texts_, ElementsAre("a", "bcdefg"));
}

TEST_F(ChunkPacerTest, WhatWaitsLeavesInTimeThoughNothingFollows) {
  Start(std::chrono::milliseconds(1));
  pacer_->Add(Chunk(1));
  for (int i = 0; i < 3; ++i) pacer_->Add(Chunk(1));
  while (received_ < 4) ASSERT_TRUE(context_.RunSome(Clock::now() + std::chrono::seconds(60)));
}

TEST_F(ChunkPacerTest, WithoutAnIntervalEachLeavesByItself) {
  Start({});
  for (int i = 0; i < 3; ++i) pacer_->Add(Chunk(1));
  EXPECT_THAT(texts_, ElementsAre("a", "b", "c"));
}

TEST_F(ChunkPacerTest, TracesAndScoredPromptsLeaveAtOnce) {
  Start(kNever);
  v1::GenerateResponse scored;
  scored.add_prompt_logprobs();
  pacer_->Add(scored);
  pacer_->Add(scored);
  v1::GenerateResponse traced = Chunk(2);
  traced.mutable_trace();
  pacer_->Add(std::move(traced));
  EXPECT_THAT(texts_, ElementsAre("", "", "ab"));
}

TEST_F(ChunkPacerTest, WhatWaitsWhenTheSampleFailsIsNotLost) {
  Start(kNever);
  pacer_->Add(Chunk(1));
  pacer_->Add(Chunk(1));
  pacer_->Flush();
  pacer_->Flush();
  EXPECT_THAT(texts_, ElementsAre("a", "b"));
}

}  // namespace
}  // namespace outrider
