# XGrammar, from the sources that scripts/install unpacks into OUTRIDER_VENV: the target xgrammar::xgrammar. Its own CMakeLists.txt
# requires TVM, which only its Python bindings need. The sources are unchanged, so warnings are off.
set(XGRAMMAR_ROOT ${OUTRIDER_VENV}/src/xgrammar)
outrider_find_sources(XGrammar ${XGRAMMAR_ROOT}/include xgrammar/xgrammar.h)
if(XGrammar_FOUND AND NOT TARGET xgrammar::xgrammar)
  find_package(Threads REQUIRED)
  set(sources
    compiled_grammar config earley_parser fsm fsm_builder grammar grammar_builder grammar_compiler grammar_functor grammar_matcher
    grammar_parser grammar_printer json_schema_converter lark_converter regex_converter structural_tag suffix_automata testing
    tokenizer_info converter_ext/cohere converter_ext/deepseek converter_ext/glm converter_ext/kimi_k3 converter_ext/minimax
    converter_ext/minimax_m3 converter_ext/qwen support/logging support/recursion_guard)
  list(TRANSFORM sources PREPEND ${XGRAMMAR_ROOT}/cpp/)
  list(TRANSFORM sources APPEND .cc)
  add_library(xgrammar STATIC ${sources})
  add_library(xgrammar::xgrammar ALIAS xgrammar)
  # Its messages go to common/grammar/xgrammar_log.cc, so it links only together with that file.
  target_compile_definitions(xgrammar PRIVATE XGRAMMAR_LOG_CUSTOMIZE=1)
  if(OUTRIDER_SANITIZE)
    target_compile_options(xgrammar PRIVATE -w -O0 -U_FORTIFY_SOURCE)  # it takes minutes to optimise
  else()
    target_compile_options(xgrammar PRIVATE -w -O2)
  endif()
  if(OUTRIDER_SANITIZE MATCHES undefined)
    target_compile_options(xgrammar PRIVATE -fno-sanitize=undefined)  # its arithmetic stays as it is
  endif()
  target_include_directories(xgrammar SYSTEM PUBLIC ${XGrammar_INCLUDE_DIR} ${XGRAMMAR_ROOT}/3rdparty/dlpack/include
    PRIVATE ${XGRAMMAR_ROOT}/3rdparty/picojson ${XGRAMMAR_ROOT}/cpp)
  target_link_libraries(xgrammar PUBLIC Threads::Threads)
endif()
