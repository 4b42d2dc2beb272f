# SPDX-License-Identifier: Apache-2.0
libbanyan_core_la_SOURCES += \
  %D%/comm.c %D%/comm.h \
  %D%/connect.c \
  %D%/cores.c \
  %D%/comm_device.c \
  %D%/facts.c %D%/facts.h \
  %D%/membership.c %D%/membership.h \
  %D%/shrink.c
