# Builds for arm64 on another processor, by Debian's cross compiler: cmake -DCMAKE_TOOLCHAIN_FILE=packaging/setup/arm64.cmake
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
