# SPDX-License-Identifier: Apache-2.0
# Tests that interpret nvcc's PTX of the kernels on the emulator.
test_scripts += %D%/test_ptx.sh
ptx_tests = %D%/test_ptx_matrix
if NVCC
check_DATA += kernels.fatbin
compiled_flags = -DBNY_TESTS_PTX
ptx_script_runs = yes
libbanyan_emulator_la_SOURCES += \
  %D%/arithmetic.cc \
  %D%/compiled.cc \
  %D%/compiled.hh \
  %D%/decode.cc \
  %D%/lexer.hh \
  %D%/matrix.cc \
  %D%/memory.cc \
  %D%/parse.cc \
  %D%/ptx.hh \
  %D%/run.cc \
  %D%/warp.cc
cuda_tests += $(ptx_tests)
else
EXTRA_PROGRAMS += $(ptx_tests)
endif
%C%_test_ptx_matrix_SOURCES = %D%/test_ptx_matrix.cc
%C%_test_ptx_matrix_LDADD = libbanyan_emulate.la $(LDADD)
