# SPDX-License-Identifier: Apache-2.0
# Tests with the fake driver and its kernels are not built if configure found no compiler or headers for these.
unit_tests += \
  %D%/test_decode_plan \
  %D%/test_device \
  %D%/test_device_attention_fail \
  %D%/test_device_numbers \
  %D%/test_program_replay
emulated_tests = \
  %D%/test_device_arenas \
  %D%/test_device_attention \
  %D%/test_device_calls \
  %D%/test_device_combine \
  %D%/test_device_reach \
  %D%/test_device_user \
  %D%/test_device_valid \
  %D%/test_device_valid_stops
node_tests = \
  %D%/test_device_nodes \
  %D%/test_proxy
if CUDA
if CXX17
unit_tests += $(emulated_tests)
if UCX
unit_tests += $(node_tests)
endif
endif
endif
libbanyan_tests_la_SOURCES += %D%/device_util.h
%C%_test_device_nodes_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS) $(UCX_CFLAGS)
# Drivers return constants that the toolkit defines.
%C%_test_device_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS)
# GPUs run a user's kernel compiled by nvcc.
%C%_test_device_user_CPPFLAGS = $(AM_CPPFLAGS)
if NVCC
%C%_test_device_user_CPPFLAGS += -DUSER_KERNEL_IMAGE='"tests/gpu/user_kernel.fatbin"'
user_kernel_object = %D%/test_device_user-test_device_user.$(OBJEXT)
$(user_kernel_object): tests/gpu/user_kernel.fatbin
endif
