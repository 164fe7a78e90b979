outrider_unit_test(spec_statistics_test
  SOURCES
    slow/spec_chi_square.h
    slow/spec_statistics_test.cc
  LIBS outrider::spec
  LABEL slow)

outrider_unit_test(spec_textbook_test
  SOURCES
    slow/spec_textbook.h
    slow/spec_textbook_test.cc
  LIBS outrider::spec
  LABEL slow)
