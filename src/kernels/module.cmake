# The level files are compiled for their CPU level, all others for the baseline. -O3 also in Check
# builds: the kernel text lives from constant arguments and unrolled loops.
set(MX_X86 FALSE)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(MX_X86 TRUE)
endif()
set(plain)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  # Where each variable lives in a fully unrolled tile helps nobody, and finding out takes as long as
  # all the rest of the compilation.
  set(plain -fno-var-tracking)
endif()
set(level -O3 ${plain})
if(MTPLX_SANITIZE OR MTPLX_FUZZ)
  # Instrumenting each of the inlined, unrolled lanes takes the compiler many minutes.
  set(level -O1 -DMX_NO_UNROLL=1 ${plain})
endif()
set(dir ${CMAKE_SOURCE_DIR}/src/kernels)
set_source_files_properties(${dir}/kern_portable.c ${dir}/kern_repack.c ${dir}/kern_dequant.c
  PROPERTIES COMPILE_OPTIONS "${level}")
if(MX_X86)
  set_source_files_properties(${dir}/kern_avx2.c PROPERTIES COMPILE_OPTIONS "${level};-mavx2;-mfma;-mf16c")
  # What it reads and writes is what kern_avx2.c does: instrumenting that one is enough.
  set_source_files_properties(${dir}/kern_avxvnni.c PROPERTIES COMPILE_OPTIONS
    "-O3;${plain};-fno-sanitize=all;-mavx2;-mfma;-mf16c;-mavxvnni")
  set_source_files_properties(${dir}/kern_avx512.c PROPERTIES COMPILE_OPTIONS
    "${level};-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512vnni")
  target_compile_definitions(mx_kernels PRIVATE MX_HAVE_X86=1)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set_source_files_properties(${dir}/kern_neon.c PROPERTIES COMPILE_OPTIONS "${level}")
  target_compile_definitions(mx_kernels PRIVATE MX_HAVE_NEON=1)
endif()
target_link_libraries(mx_kernels PUBLIC m)
