// Parses the bytes of a connection as the gateway does: how they are cut must not change the requests.
#include "common/net/http_parser.h"

#include <string>

#include "tests/fuzz/target.h"

namespace outrider {
namespace {

struct Understood {
  std::string log;
  bool head_too_long = false;  // of the request after those in the log
};

// `piece`: the number of bytes that arrive at a time.
Understood Read(std::string_view bytes, size_t piece) {
  static const HttpLimits limits = {.max_head_bytes = 512, .max_url_bytes = 128, .max_body_bytes = 256};
  std::string log;
  size_t taken = 0;
  size_t arrived = 0;
  for (int requests = 0; requests < 4; ++requests) {
    HttpParser parser(limits);
    bool allowed = false;
    std::string now_read;
    while (!parser.done()) {
      if (parser.head_done() && !allowed) {
        const HttpRequest head = parser.TakeHead();
        now_read = head.method + " " + head.path + " " + std::to_string(head.headers.size()) + "\n";
        parser.AllowBody();
        allowed = true;
      } else {
        const size_t now = parser.Put({bytes.data() + taken, arrived - taken});
        Require(now <= arrived - taken, "no more is taken than was there");
        taken += now;
        if (now == 0 && !parser.problem() && !parser.done() && (!parser.head_done() || allowed)) {
          if (arrived == bytes.size()) return {.log = log};
          arrived = std::min(bytes.size(), arrived + piece);
        }
      }
      if (parser.problem()) return {log, parser.problem()->status == 431};
    }
    const std::string body = parser.TakeBody();
    Require(body.size() <= limits.max_body_bytes, "a body is not larger than allowed");
    log += now_read + body + (parser.keep_alive() ? "\nkept\n" : "\nclosed\n");
  }
  return {.log = log};
}

}  // namespace

void FuzzTarget(std::string_view bytes) {
  Input input(bytes);
  const size_t piece = 1 + input.Byte();
  // A head that is not HTTP may be refused at once or at its end; this is not compared. A head of exactly the
  // longest allowed length is too long for Beast if its end arrives in a piece of its own. The requests
  // before it must be the same.
  const Understood in_pieces = Read(input.rest(), piece), at_once = Read(input.rest(), bytes.size() + 1);
  Require(in_pieces.log == at_once.log ||
              (in_pieces.head_too_long && at_once.log.starts_with(in_pieces.log)) ||
              (at_once.head_too_long && in_pieces.log.starts_with(at_once.log)),
          "pieces change nothing");
}

}  // namespace outrider
