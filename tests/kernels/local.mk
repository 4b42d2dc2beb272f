# SPDX-License-Identifier: Apache-2.0
unit_tests += \
  %D%/test_exact \
  %D%/test_formats \
  %D%/test_kernels \
  %D%/test_merge_math \
  %D%/test_partial_check \
  %D%/test_select
test_scripts += %D%/test_neon.sh
EXTRA_DIST += %D%/neon/check.h

# Kernels for AVX512-BF16 and AMX, on any processor with AVX-512 and VBMI. The list of kernels asks whether this is one.
if AVX512
unit_tests += %D%/test_emulated_laws %D%/test_emulated_rows
check_LTLIBRARIES += libbanyan_emulated_kernels.la libbanyan_emulated_table.la
endif
libbanyan_emulated_kernels_la_SOURCES = \
  %D%/emulated_amx.c \
  %D%/emulated_avx512_bf16.c \
  %D%/emulated_tiles.h
libbanyan_emulated_kernels_la_CFLAGS = $(AM_CFLAGS) $(AVX512_CFLAGS) -mavx512vbmi
libbanyan_emulated_table_la_SOURCES = %D%/emulated_table.c
emulated_libs = libbanyan_emulated_table.la libbanyan_emulated_kernels.la $(LDADD)
%C%_test_emulated_laws_SOURCES = tests/attention/test_laws.c
%C%_test_emulated_laws_CPPFLAGS = $(AM_CPPFLAGS) -DLAWS_FEWER=12
%C%_test_emulated_laws_LDADD = $(emulated_libs)
%C%_test_emulated_rows_SOURCES = tests/api/test_attention_rows.c
%C%_test_emulated_rows_LDADD = $(emulated_libs)
