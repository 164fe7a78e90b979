// Requests of the OpenAI API, for tests.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "common/rpc/error.h"
#include "coordinator/openai/openai_answer.h"
#include "coordinator/openai/openai_request.h"

namespace outrider {

using Json = nlohmann::json;

inline constexpr char kOneMessage[] = R"("messages": [{"role": "user", "content": "hi"}])";

// A body with the required fields and `more`.
inline absl::StatusOr<OpenAiRequest> Completions(const std::string& more) {
  return ParseOpenAiRequest(Endpoint::kCompletions,
                            R"({"prompt": "Once")" + (more.empty() ? "}" : "," + more + "}"));
}
inline absl::StatusOr<OpenAiRequest> Chat(const std::string& more) {
  return ParseOpenAiRequest(Endpoint::kChat,
                            std::string("{") + kOneMessage + (more.empty() ? "}" : "," + more + "}"));
}

// The error object of a refusal.
inline Json ErrorOf(const absl::StatusOr<OpenAiRequest>& request,
                    Endpoint endpoint = Endpoint::kCompletions) {
  EXPECT_FALSE(request.ok());
  if (request.ok()) return {{"param", "none"}, {"code", "none"}, {"message", "none"}};
  const HttpError error = ToHttpError(request.status(), endpoint);
  EXPECT_EQ(error.status, 400);
  return Json::parse(error.body)["error"];
}

}  // namespace outrider
