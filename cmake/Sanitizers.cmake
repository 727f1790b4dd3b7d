# GPUUMD_SANITIZE: "" | address (with undefined) | thread
set(GPUUMD_SANITIZE "" CACHE STRING "sanitizers to build with: empty, address or thread")
if(GPUUMD_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
  add_compile_definitions(GPUUMD_SANITIZED)
elseif(GPUUMD_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
  add_compile_definitions(GPUUMD_SANITIZED)
elseif(NOT GPUUMD_SANITIZE STREQUAL "")
  message(FATAL_ERROR "GPUUMD_SANITIZE must be empty, address or thread, not ${GPUUMD_SANITIZE}")
endif()

# GCC 12 takes members of a std::variant for uninitialized once sanitizers have rewritten its moves;
# the builds without sanitizers, which see the same code, keep the warning.
if(GPUUMD_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-Wno-maybe-uninitialized)
endif()

# GCC warns that ThreadSanitizer does not see fences; the accesses beside ours are atomics.
if(GPUUMD_SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-Wno-tsan)
endif()
