outrider_unit_test(coordinator_test
  SOURCES
    unit/admission_test.cc
    unit/beam_search_test.cc
    unit/beam_tables.h
    unit/branches_test.cc
    unit/chat_goldens.h
    unit/chat_template_expressions_test.cc
    unit/chat_template_input_test.cc
    unit/chat_template_published_test.cc
    unit/chat_template_test.cc
    unit/chunk_pacer_test.cc
    unit/circuit_breaker_test.cc
    unit/coordinator_test.cc
    unit/dns_name_test.cc
    unit/draft_length_policy_test.cc
    unit/drafter_test.cc
    unit/executor_progress_test.cc
    unit/fair_queue_test.cc
    unit/fit_vocabulary_test.cc
    unit/generate_call_test.cc
    unit/grpc_context_test.cc
    unit/limited_memory.cc
    unit/link_test.cc
    unit/link_testing.h
    unit/metrics_test.cc
    unit/model_drafter_test.cc
    unit/parse_drafter_test.cc
    unit/parse_tree_test.cc
    unit/placement_test.cc
    unit/pool_testing.h
    unit/remote_sequence_test.cc
    unit/request_context_test.cc
    unit/run_ahead_policy_test.cc
    unit/sampling_defaults_test.cc
    unit/server_pace_test.cc
    unit/server_pool_test.cc
    unit/target_client_pool_test.cc
    unit/target_client_test.cc
    unit/target_drafter_test.cc
    unit/tree_policy_test.cc
  LIBS outrider::coordinator outrider::text nlohmann_json::nlohmann_json OpenSSL::Crypto)
set_source_files_properties(unit/chat_template_input_test.cc unit/chat_template_published_test.cc PROPERTIES
  COMPILE_DEFINITIONS OUTRIDER_CHAT_TEMPLATES="${OUTRIDER_VENV}/src/llama.cpp/models/templates")
outrider_unit_test(gateway_test
  SOURCES
    unit/gateway_answer_test.cc
    unit/gateway_http_test.cc
    unit/gateway_limits_test.cc
    unit/gateway_request_test.cc
    unit/http_client.cc
  LIBS outrider::gateway)
outrider_unit_test(rpc_test
  SOURCES
    unit/queue_poller_test.cc
    unit/rpc_address_test.cc
    unit/rpc_edges_test.cc
    unit/rpc_convert_test.cc
    unit/rpc_server_test.cc
    unit/rpc_stream_test.cc
    unit/rpc_token_file_test.cc
    unit/rpc_verdict_test.cc
  LIBS outrider::messages outrider::rpc)
outrider_unit_test(serve_test
  SOURCES
    unit/held_sampler.h
    unit/kv_budget_test.cc
    unit/serve_convert_test.cc
    unit/stall_watch_test.cc
  LIBS outrider::serve outrider::rejection_sampler)
outrider_unit_test(model_services_test
  SOURCES
    unit/beam_candidates_test.cc
    unit/held_sampler.h
    unit/model_services_test.cc
  LIBS outrider::draft_service outrider::target_service outrider::rpc)
