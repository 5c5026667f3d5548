# Splitting and merging byte planes is one loop each, which only -O3 makes vectors of.
set_source_files_properties(${CMAKE_SOURCE_DIR}/src/cold/cold_codec.c PROPERTIES COMPILE_OPTIONS -O3)
