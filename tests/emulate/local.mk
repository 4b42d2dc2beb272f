# SPDX-License-Identifier: Apache-2.0
# Tests of device kernels on the host, in C++.
cuda_tests += \
  %D%/test_page_division
%C%_test_page_division_SOURCES = %D%/test_page_division.cc
%C%_test_page_division_LDADD = libbanyan_emulator.la $(LDADD)

# The emulated device.
if CXX17
check_LTLIBRARIES += libbanyan_emulator.la
else
EXTRA_LTLIBRARIES += libbanyan_emulator.la
endif
libbanyan_emulator_la_SOURCES = \
  %D%/emulate.cc %D%/emulate.hh %D%/emulate_stack.hh %D%/emulate_sum.hh %D%/emulate_warpgroup.hh
libbanyan_emulator_la_CXXFLAGS = $(plain_cxxflags) $(EMULATOR_SANITIZER_CFLAGS)

# The fake CUDA driver, which the library loads in tests.
if CUDA
if CXX17
check_LTLIBRARIES += %D%/fake_cuda.la
endif
endif
%C%_fake_cuda_la_SOURCES = \
  %D%/fake_cuda.c %D%/fake_cuda.h \
  %D%/fake_cuda_graph.cc \
  %D%/fake_cuda_kernels.cc \
  %D%/fake_cuda_memory.c \
  %D%/fake_cuda_parts.h \
  %D%/fake_cuda_queue.cc %D%/fake_cuda_queue.hh \
  %D%/fake_cuda_work.c \
  %D%/user_kernel.cuh \
  %D%/user_kernel.h
%C%_fake_cuda_la_CPPFLAGS = $(AM_CPPFLAGS)
%C%_fake_cuda_la_CFLAGS = $(AM_CFLAGS) $(CUDA_CFLAGS)
%C%_fake_cuda_la_CXXFLAGS = $(plain_cxxflags) $(EMULATOR_SANITIZER_CFLAGS) -fvisibility=hidden $(CUDA_CFLAGS)
%C%_fake_cuda_la_LIBADD = libbanyan_emulator.la
%C%_fake_cuda_la_LDFLAGS = $(module_flags)
