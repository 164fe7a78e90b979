// continue ADDRESS PROMPT [TEMPERATURE]: prints a continuation as it comes, then statistics of its drafts.
#include <cstdio>
#include <cstdlib>

#include "client/client.h"
#include "common/rpc/error.h"

namespace {

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "%s (reason %s, field %s)\n", std::string(status.message()).c_str(),
               outrider::ReasonOf(status).c_str(), outrider::MetadataOf(status, "field").c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: %s ADDRESS PROMPT [TEMPERATURE]\n", argv[0]), 2;
  // Waits up to 30 s for a coordinator that is restarted. The text then goes on where it broke off.
  const auto client = outrider::Client::Connect(argv[1], {.retry_for = absl::Seconds(30)});
  if (!client.ok()) return Fail(client.status());

  outrider::v1::GenerateRequest request;
  request.set_text(argv[2]);
  request.mutable_sampling()->set_temperature(argc > 3 ? std::strtof(argv[3], nullptr) : 0);
  request.mutable_stop()->set_max_tokens(40);
  const auto completion = client->Generate(request, [](const outrider::v1::GenerateResponse& chunk) {
    std::printf("%s", chunk.text().c_str());
    std::fflush(stdout);
  });
  if (!completion.ok()) return Fail(completion.status());
  const outrider::v1::SpeculationStats& stats = completion->finish.speculation();
  std::fprintf(stderr, "\n%zu tokens, %llu of %llu drafted ones accepted\n", completion->tokens.size(),
               static_cast<unsigned long long>(stats.accepted()),
               static_cast<unsigned long long>(stats.drafted()));
  return 0;
}
