#include "coordinator/admission/admission.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/rpc/error.h"

namespace outrider {
namespace {

constexpr absl::Duration kRetryAfter = absl::Milliseconds(200);

absl::Status Draining() {
  return MakeError(absl::StatusCode::kUnavailable, "DRAINING", "the coordinator is shutting down");
}

}  // namespace

Admission::Ticket::~Ticket() {
  if (running_) {
    admission_->running_samples_ -= samples_;
    admission_->running_.erase(this);
    admission_->StartNext();
  } else {
    admission_->queue_.Remove(this);
  }
  admission_->on_change_();
}

asio::awaitable<absl::Status> Admission::Ticket::WaitForTurn(Clock::time_point deadline) {
  while (!running_ && reason_.ok() && Clock::now() < deadline) co_await changed_.Wait(deadline);
  if (running_) co_return absl::OkStatus();
  co_return reason_.ok() ? absl::DeadlineExceededError("deadline exceeded while waiting in the queue")
                         : reason_;
}

absl::StatusOr<std::unique_ptr<Admission::Ticket>> Admission::Enter(const std::string& client, int samples,
                                                                    std::function<void(absl::Status)> end) {
  if (!open_) return Draining();
  std::unique_ptr<Ticket> ticket(new Ticket(this, samples, std::move(end)));
  // No call overtakes those that wait.
  if (queue_.size() == 0 && running_samples_ + samples <= limits_.max_samples) {
    ticket->Run();
  } else {
    const size_t per_client = static_cast<size_t>(limits_.max_waiting);
    const size_t waiting = queue_.size_of(client);
    if (waiting >= per_client || queue_.size() >= per_client * kMaxWaitingClients) {
      return BusyError(
          "QUEUE_FULL",
          absl::StrCat(running_samples_, " of at most ", limits_.max_samples, " requests are running, ",
                       queue_.size(), " wait, ", waiting, " of them of this client"),
          kRetryAfter);
    }
    queue_.Push(client, samples, ticket.get());
  }
  on_change_();
  return ticket;
}

void Admission::Close() {
  open_ = false;
  while (Ticket* const next = queue_.Next()) {
    queue_.Pop();
    next->End(Draining());
  }
  on_change_();
}

void Admission::EndAll() {
  for (const Ticket* ticket : running_) {
    ticket->end_(MakeError(absl::StatusCode::kUnavailable, "DRAINING",
                           "the coordinator is shutting down; resume_from continues this answer"));
  }
}

}  // namespace outrider
