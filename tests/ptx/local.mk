# SPDX-License-Identifier: Apache-2.0
# Tests that interpret nvcc's PTX of the kernels on the emulator. They are not part of the suite.
ptx_tests = %D%/test_ptx_matrix
EXTRA_PROGRAMS += $(ptx_tests)
ptx_script = %D%/test_ptx.sh
EXTRA_DIST += $(ptx_script)
if NVCC
compiled_flags = -DBNY_TESTS_PTX
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
endif
%C%_test_ptx_matrix_SOURCES = %D%/test_ptx_matrix.cc
%C%_test_ptx_matrix_LDADD = libbanyan_emulate.la $(LDADD)

check-ptx: all kernels.fatbin
	$(MAKE) $(AM_MAKEFLAGS) check TESTS=
	$(MAKE) $(AM_MAKEFLAGS) $(ptx_tests)
	$(ptx_tests)
	top_builddir=. $(srcdir)/$(ptx_script)
.PHONY: check-ptx
