# What a device decides, by the same source on the host: neither torch nor a GPU.
outrider_unit_test(decide_test
  SOURCES
    ${CMAKE_SOURCE_DIR}/common/engine/cuda/decide_convert.cc
    unit/decide_draw_test.cc
    unit/decide_shape_test.cc
    unit/decide_testing.h
    unit/decide_verify_test.cc
  LIBS outrider::spec Threads::Threads)
