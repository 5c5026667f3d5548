# Cross build for 64-bit ARM with Debian's gcc-aarch64-linux-gnu; tests run under qemu-user. The
# libraries come from a folder that scripts/aarch64-sysroot.sh fills:
#
#   scripts/aarch64-sysroot.sh build-aarch64/sysroot
#   cmake -S . -B build-aarch64 -G Ninja -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake
#
# The folder is <build>/sysroot, or what MTPLX_SYSROOT says.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

# Checks of the compiler run this file in projects of their own, with another binary folder.
set(MTPLX_SYSROOT "${CMAKE_BINARY_DIR}/sysroot" CACHE PATH "arm64 libraries and headers")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES MTPLX_SYSROOT)

set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_SYSROOT "${MTPLX_SYSROOT}")
find_program(MTPLX_QEMU NAMES qemu-aarch64-static qemu-aarch64)
set(CMAKE_CROSSCOMPILING_EMULATOR "${MTPLX_QEMU};-L;${MTPLX_SYSROOT}")

set(CMAKE_FIND_ROOT_PATH "${MTPLX_SYSROOT}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)

# The machine's own pkg-config, told to look there and nowhere else.
set(ENV{PKG_CONFIG_PATH} "")
set(ENV{PKG_CONFIG_LIBDIR}
    "${MTPLX_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${MTPLX_SYSROOT}/usr/share/pkgconfig")
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${MTPLX_SYSROOT}")
