// Apart from the rest of metrics_page.h, since this header takes long to compile.
#include <httplib.h>

#include "absl/strings/str_cat.h"
#include "client/cli/metrics_page.h"

namespace outrider {

absl::StatusOr<MetricsPage> FetchMetrics(const std::string& address) {
  httplib::Client client("http://" + address);
  client.set_connection_timeout(1);
  client.set_read_timeout(1);
  const httplib::Result answer = client.Get("/metrics");
  if (!answer || answer->status != 200) {
    return absl::UnavailableError(absl::StrCat(
        "no metrics at http://", address,
        "/metrics: ", answer ? absl::StrCat("status ", answer->status) : httplib::to_string(answer.error())));
  }
  return MetricsPage::Parse(answer->body);
}

}  // namespace outrider
