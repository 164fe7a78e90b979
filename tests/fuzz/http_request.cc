// Bytes of an HTTP connection, as the gateway reads them: the requests do not depend on how the bytes arrive.
#include "coordinator/gateway/http_parser.h"
#include "tests/fuzz/target.h"

namespace outrider {
namespace {

constexpr char kMore[] = "more\n";

// All that was understood, up to the first problem. `piece`: bytes that arrive at a time.
std::string Read(std::string_view bytes, size_t piece) {
  static const HttpLimits limits = {.max_head_bytes = 512, .max_url_bytes = 128, .max_body_bytes = 256};
  std::string log;
  size_t taken = 0;
  size_t arrived = 0;
  for (int requests = 0; requests < 4; ++requests) {
    HttpParser parser(limits);
    bool allowed = false;
    while (!parser.done()) {
      if (parser.head_done() && !allowed) {
        const HttpRequest head = parser.TakeHead();
        log += head.method + " " + head.path + " " + std::to_string(head.headers.size()) + "\n";
        parser.AllowBody();
        allowed = true;
      } else {
        const size_t now = parser.Put({bytes.data() + taken, arrived - taken});
        Require(now <= arrived - taken, "no more is taken than was there");
        taken += now;
        if (now == 0 && !parser.problem() && !parser.done() && (!parser.head_done() || allowed)) {
          if (arrived == bytes.size()) return log + kMore;
          arrived = std::min(bytes.size(), arrived + piece);
        }
      }
      if (parser.problem()) return log + std::to_string(parser.problem()->status) + "\n";
    }
    const std::string body = parser.TakeBody();
    Require(body.size() <= limits.max_body_bytes, "a body is not larger than allowed");
    log += body + (parser.keep_alive() ? "\nkept\n" : "\nclosed\n");
  }
  return log;
}

}  // namespace

void FuzzTarget(std::string_view bytes) {
  Input input(bytes);
  const size_t piece = 1 + input.Byte();
  std::string read = Read(input.rest(), piece);
  // A head that does not end may be refused at once, or when it has ended.
  if (read.ends_with(kMore)) read.erase(read.size() - sizeof(kMore) + 1);
  Require(Read(input.rest(), bytes.size() + 1).starts_with(read), "pieces change nothing");
}

}  // namespace outrider
