# SPDX-License-Identifier: Apache-2.0
unit_tests += \
  %D%/test_fd_passing \
  %D%/test_net_devices \
  %D%/test_shm
libbanyan_tests_la_SOURCES += \
  %D%/net_util.h

# These include headers of UCX.
if UCX
unit_tests += \
  %D%/test_net \
  %D%/test_net_abort \
  %D%/test_net_half \
  %D%/test_net_hooks \
  %D%/test_net_messages \
  %D%/test_net_start
%C%_test_net_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS) $(UCX_CFLAGS)
%C%_test_net_abort_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS) $(UCX_CFLAGS)
%C%_test_net_half_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS) $(UCX_CFLAGS)
%C%_test_net_hooks_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS) $(UCX_CFLAGS)
%C%_test_net_start_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS) $(UCX_CFLAGS)
%C%_test_net_messages_CFLAGS = $(AM_CFLAGS) $(CHECK_CFLAGS) $(UCX_CFLAGS)
endif
