// Draft and target in one process. As two processes on one GPU they would take turns at it.
#include "draft_service/draft_service.h"
#include "target_service/target_service.h"

int main(int argc, char** argv) {
  return outrider::RunModelProgram(
      {.name = "pair",
       .description = "Draft and target in one process, for one GPU: two services, which end together.",
       .metrics_listen = "127.0.0.1:9072",
       .services = {outrider::TargetSpec(), outrider::DraftSpec()}},
      argc, argv);
}
