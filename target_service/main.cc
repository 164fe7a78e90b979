#include "target_service/target_service.h"

int main(int argc, char** argv) {
  return outrider::RunModelProgram(
      {.name = "target",
       .description = "Verifies drafted tokens with the target model, corrects, and owns the paged KV cache.",
       .metrics_listen = "127.0.0.1:9072",
       .services = {outrider::TargetSpec()}},
      argc, argv);
}
