#include "draft_service/draft_service.h"

int main(int argc, char** argv) {
  return outrider::RunModelProgram(
      {.name = "draft",
       .description = "Proposes tokens, and the distributions they were drawn from, with the draft model.",
       .metrics_listen = "127.0.0.1:9071",
       .services = {outrider::DraftSpec()}},
      argc, argv);
}
