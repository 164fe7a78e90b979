outrider_unit_test(spec_statistics_test
  SOURCES
    slow/spec_chi_square.h
    slow/spec_statistics_test.cc
  LIBS outrider::spec
  LABEL slow)
