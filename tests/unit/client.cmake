outrider_unit_test(client_render_test SOURCES unit/client_render_test.cc LIBS outrider::cli)
outrider_unit_test(client_flags_test SOURCES unit/client_flags_test.cc LIBS outrider::cli)
outrider_unit_test(client_process_test SOURCES unit/client_process_test.cc LIBS outrider::cli)
outrider_unit_test(client_top_test SOURCES unit/client_top_test.cc LIBS outrider::cli)
