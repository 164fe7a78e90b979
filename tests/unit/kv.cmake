outrider_unit_test(kv_test
  SOURCES
    unit/kv_block_test.cc
    unit/kv_prefix_test.cc
    unit/kv_sequence_test.cc
    unit/kv_tree_test.cc
  LIBS outrider::kv)
