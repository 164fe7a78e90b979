outrider_unit_test(worker_test
  SOURCES
    unit/scheduler_test.cc
    unit/worker_test.cc
  LIBS outrider::engine outrider::draft_service outrider::target_service)
outrider_unit_test(coordinator_test
  SOURCES
    unit/coordinator_test.cc
    unit/drafter_test.cc
    unit/policy_test.cc
    unit/request_context_test.cc
  LIBS outrider::coordinator)
outrider_unit_test(rpc_test SOURCES unit/rpc_token_file_test.cc LIBS outrider::rpc)
