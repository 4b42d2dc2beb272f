# SPDX-License-Identifier: Apache-2.0
unit_tests += \
  %D%/test_file \
  %D%/test_log \
  %D%/test_pool \
  %D%/test_sized \
  %D%/test_trace
%C%_test_trace_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS) $(JANSSON_CFLAGS)
%C%_test_trace_LDADD = $(LDADD) $(JANSSON_LIBS)
