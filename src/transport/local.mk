# SPDX-License-Identifier: Apache-2.0
libbanyan_core_la_SOURCES += \
  %D%/fd_passing.c %D%/fd_passing.h \
  %D%/loop.c \
  %D%/memory_file.c %D%/memory_file.h \
  %D%/rejection.c %D%/rejection.h \
  %D%/shm.c \
  %D%/transport.h \
  %D%/window.c %D%/window.h
libbanyan_core_la_SOURCES += \
  %D%/ucx/devices.c %D%/ucx/devices.h \
  %D%/ucx/functions.def \
  %D%/ucx/library.h \
  %D%/ucx/ucx.c %D%/ucx/ucx.h
if UCX
libbanyan_core_la_SOURCES += \
  %D%/ucx/library.c \
  %D%/ucx/message.c \
  %D%/ucx/peer.c \
  %D%/ucx/put.c \
  %D%/ucx/receive.c \
  %D%/ucx/report.c \
  %D%/ucx/start.c \
  %D%/ucx/tell.c
endif
