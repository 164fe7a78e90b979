#include "coordinator/api/admission.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/rpc/error.h"

namespace outrider {

Admission::Ticket::~Ticket() {
  admission_->running_samples_ -= samples_;
  admission_->running_.erase(this);
}

absl::Status Admission::CheckOpen() const {
  if (open_) return absl::OkStatus();
  return MakeError(absl::StatusCode::kUnavailable, "DRAINING", "the coordinator is shutting down");
}

absl::StatusOr<std::unique_ptr<Admission::Ticket>> Admission::Enter(int samples,
                                                                    std::function<void(absl::Status)> end) {
  if (running_samples_ + samples > max_samples_) {
    return BusyError("QUEUE_FULL",
                     absl::StrCat(running_samples_, " of at most ", max_samples_,
                                  " requests are running, this one has ", samples, " samples"),
                     absl::Milliseconds(200));
  }
  std::unique_ptr<Ticket> ticket(new Ticket(this, samples, std::move(end)));
  running_samples_ += samples;
  running_.insert(ticket.get());
  return ticket;
}

void Admission::EndAll() {
  for (const Ticket* ticket : running_) {
    ticket->end_(MakeError(absl::StatusCode::kUnavailable, "DRAINING",
                           "the coordinator is shutting down; resume_from continues this answer"));
  }
}

}  // namespace outrider
