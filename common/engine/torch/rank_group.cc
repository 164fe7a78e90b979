#include "common/engine/torch/rank_group.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/udp.hpp>
#include <chrono>
#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/spec/status.h"

namespace outrider::libtorch {
namespace {

// How long ranks wait for each other when they start.
constexpr auto kPatience = std::chrono::minutes(5);
// How long they wait afterwards. A lost rank is noticed at once; a rank that hangs shows in the service's
// health.
constexpr auto kForever = std::chrono::hours(24 * 365);
// How many numbers are sent together with their count. The rest of a longer list follows in a second message.
constexpr int64_t kShort = 255;

absl::Status Unavailable(const ParallelOptions& options, absl::string_view why) {
  return absl::UnavailableError(
      absl::StrCat("--rendezvous ", options.rendezvous, ": ", why.substr(0, why.find('\n'))));
}

// Names may take a while to resolve, those of Kubernetes' pods for example.
std::string AwaitOwnAddress(const Rendezvous& rendezvous) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    try {
      return OwnAddressTowards(rendezvous);
    } catch (const std::exception&) {
      if (std::chrono::steady_clock::now() >= end) throw;
    }
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

c10::intrusive_ptr<c10d::ProcessGroupGloo> Meet(const ParallelOptions& options,
                                                const Rendezvous& rendezvous) {
  auto gloo = c10d::ProcessGroupGloo::Options::create(kPatience);
  gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(AwaitOwnAddress(rendezvous)));
  c10d::TCPStoreOptions store;
  store.port = rendezvous.port;
  store.isServer = options.rank == 0;
  store.numWorkers = static_cast<size_t>(options.size);
  store.timeout = kPatience;
  if (options.rank == 0) store.masterListenFd = ListenAt(rendezvous);
  if (options.on_wait) options.on_wait();
  auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::TCPStore>(rendezvous.host, store), options.rank, options.size, gloo);
  group->setTimeout(kForever);
  return group;
}

namespace asio = boost::asio;

// The first address of the host, as an endpoint of TCP or UDP.
template <class Protocol>
typename Protocol::endpoint Resolve(asio::io_context& context, const Rendezvous& rendezvous) {
  typename Protocol::resolver resolver(context);
  return *resolver.resolve(rendezvous.host, std::to_string(rendezvous.port)).begin();
}

}  // namespace

// Waits for a message that never comes. The wait ends with the connection: a loss shows even between steps.
class RankGroup::Watch {
 public:
  Watch(c10d::ProcessGroupGloo& gloo, int other, const ParallelOptions& options)
      : nothing_{at::empty({1}, at::kLong)}, work_(gloo.recv(nothing_, other, /*tag=*/1)) {
    thread_ = std::thread([this, other, &options] {
      try {
        work_->wait();
      } catch (const std::exception&) {
        // Expected sooner or later: the wait ends this way.
      }
      if (ends_ || !options.on_lost) return;
      options.on_lost(absl::UnavailableError(absl::StrCat("rank ", other, " of ", options.size, " is gone")));
    });
  }
  ~Watch() {
    ends_ = true;
    work_->abort();
    thread_.join();
  }

 private:
  std::vector<at::Tensor> nothing_;  // where the message would go
  const c10::intrusive_ptr<c10d::Work> work_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<RankGroup>> RankGroup::Join(const ParallelOptions& options,
                                                           StepRunner& runner) {
  const Rendezvous rendezvous = OUTRIDER_TRY(ParseRendezvous(options.rendezvous));
  try {
    return std::unique_ptr<RankGroup>(new RankGroup(options, rendezvous, runner));
  } catch (const c10::Error& error) {
    return Unavailable(options, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return Unavailable(options, error.what());
  }
}

RankGroup::RankGroup(const ParallelOptions& options, const Rendezvous& rendezvous, StepRunner& runner)
    : options_(options), gloo_(Meet(options, rendezvous)) {
  // A rank may be lost as soon as it has joined.
  if (rank() > 0) watches_.push_back(std::make_unique<Watch>(*gloo_, 0, options_));
  for (int other = 1; rank() == 0 && other < size(); ++other) {
    watches_.push_back(std::make_unique<Watch>(*gloo_, other, options_));
  }
  devices_ = runner.Connect(rank(), size(), [this](absl::Span<char> bytes) {
    Broadcast(at::from_blob(bytes.data(), static_cast<int64_t>(bytes.size()), at::kByte));
  });
}

RankGroup::~RankGroup() = default;

void RankGroup::Send(absl::Span<const int64_t> numbers) {
  const auto count = static_cast<int64_t>(numbers.size());
  const at::Tensor first = at::zeros(kShort + 1, at::kLong);
  int64_t* const data = first.mutable_data_ptr<int64_t>();
  data[0] = count;
  std::copy_n(numbers.begin(), std::min(count, kShort), data + 1);
  Broadcast(first);
  if (count <= kShort) return;
  numbers.remove_prefix(static_cast<size_t>(kShort));
  Broadcast(at::tensor(at::ArrayRef<int64_t>(numbers.data(), numbers.size()), at::kLong));
}

std::vector<int64_t> RankGroup::Receive() {
  const at::Tensor first = at::empty(kShort + 1, at::kLong);
  Broadcast(first);
  const int64_t* const data = first.const_data_ptr<int64_t>();
  std::vector<int64_t> numbers(data + 1, data + 1 + std::clamp<int64_t>(data[0], 0, kShort));
  if (data[0] <= kShort) return numbers;
  const at::Tensor rest = at::empty(data[0] - kShort, at::kLong);
  Broadcast(rest);
  const int64_t* const more = rest.const_data_ptr<int64_t>();
  numbers.insert(numbers.end(), more, more + rest.numel());
  return numbers;
}

at::Tensor RankGroup::Sum(const at::Tensor& share) {
  std::vector<at::Tensor> sum = {share.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).contiguous()};
  if (devices_ != nullptr) {
    devices_->Sum(sum[0]);
  } else {
    gloo_->allreduce(sum)->wait();
  }
  return sum[0];
}

at::Tensor RankGroup::Gather(const at::Tensor& share) {
  std::vector<at::Tensor> own = {share.contiguous()};
  if (devices_ != nullptr) return at::cat(devices_->Gather(own[0]).unbind(), -1);
  std::vector<std::vector<at::Tensor>> all;
  if (rank() == 0) {
    all.emplace_back();
    for (int r = 0; r < size(); ++r) all[0].push_back(at::empty_like(own[0]));
  }
  gloo_->gather(all, own)->wait();
  return rank() == 0 ? at::cat(all[0], -1) : share;
}

int64_t RankGroup::Least(int64_t number) {
  std::vector<at::Tensor> least = {at::full({1}, number, at::kLong)};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MIN;
  gloo_->allreduce(least, options)->wait();
  return least[0].item<int64_t>();
}

void RankGroup::Broadcast(const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors = {tensor};
  gloo_->broadcast(tensors)->wait();
}

absl::StatusOr<Rendezvous> ParseRendezvous(const std::string& text) {
  const size_t colon = text.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 || !absl::SimpleAtoi(text.substr(colon + 1), &port) ||
      port < 1 || port > 65535) {
    return Invalid("--rendezvous ", text, ": must be HOST:PORT with a port from 1 to 65535");
  }
  absl::string_view host = absl::string_view(text).substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");  // IPv6
  return Rendezvous{std::string(host), static_cast<uint16_t>(port)};
}

int ListenAt(const Rendezvous& rendezvous) {
  using asio::ip::tcp;
  asio::io_context context;
  tcp::acceptor acceptor(context, Resolve<tcp>(context, rendezvous), /*reuse_addr=*/true);
  return acceptor.release();
}

std::string OwnAddressTowards(const Rendezvous& rendezvous) {
  using asio::ip::udp;
  asio::io_context context;
  udp::socket socket(context);
  socket.connect(Resolve<udp>(context, rendezvous));
  return socket.local_endpoint().address().to_string();
}

}  // namespace outrider::libtorch
