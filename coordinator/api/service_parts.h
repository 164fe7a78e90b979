// What the public service and its calls work with.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "common/net/asio.h"
#include "common/text/tokenizer.h"
#include "coordinator/admission/admission.h"
#include "coordinator/api/parse_request.h"
#include "coordinator/beams/beam_choice.h"
#include "coordinator/drafters/make_drafter.h"
#include "coordinator/pools/server_pool.h"
#include "coordinator/rounds/draft_length_policy.h"
#include "coordinator/rounds/metrics.h"
#include "coordinator/rounds/round_observer.h"

namespace outrider {

// All of it belongs to the process, and outlives the service. The executor has one thread.
struct ServiceParts {
  asio::any_io_executor executor;
  asio::any_io_executor parsers;  // threads for requests that take long to parse
  Admission* parsing;             // whose turn it is there
  const Tokenizer* tokenizer;
  TargetPool* targets;
  bool mixed_numerics;  // of targets: they may compute other bits
  DrafterParts drafters;
  RequestDefaults defaults;
  Admission* admission;
  bool checks_tokens;                    // each gRPC call has brought a bearer token that is known
  std::optional<std::string> cache_key;  // of CacheSalt; without it clients share the prefix cache
  Clock::duration stream_interval;       // from one chunk to a client to the next
  Clock::duration read_patience = std::chrono::seconds(50);  // with clients that do not read
  DraftLengthPolicy* policy;
  RoundObserver* observer;
  Metrics* metrics;
  std::shared_ptr<BeamChoice> beam_choice = std::make_shared<BeamChoice>();
};

}  // namespace outrider
