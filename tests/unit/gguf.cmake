outrider_unit_test(gguf_test
  SOURCES
    unit/gguf_file_test.cc
    unit/gguf_testing.h
    unit/model_path_test.cc
  LIBS outrider::gguf)
