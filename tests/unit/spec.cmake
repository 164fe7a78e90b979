outrider_unit_test(spec_test
  SOURCES
    unit/spec_alternatives_test.cc
    unit/spec_analysis_test.cc
    unit/spec_controls_golden_test.cc
    unit/spec_controls_test.cc
    unit/spec_distribution_test.cc
    unit/spec_draft_stop_test.cc
    unit/spec_logprobs_test.cc
    unit/spec_papers_test.cc
    unit/spec_random_test.cc
    unit/spec_testing.h
    unit/spec_verify_test.cc
    unit/spec_weights_test.cc
  LIBS outrider::spec)

outrider_unit_test(spec_exactness_test
  SOURCES
    unit/likeliest_tree_test.cc
    unit/spec_budget_law_test.cc
    unit/spec_enumeration.h
    unit/spec_exactness_test.cc
    unit/spec_grammar_law_test.cc
    unit/spec_law.h
    unit/spec_run_ahead_test.cc
    unit/spec_testing.h
    unit/spec_trees_test.cc
  LIBS outrider::spec)
